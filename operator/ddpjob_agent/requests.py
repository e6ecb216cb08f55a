"""What a fork server and those that ask it for processes say to each other, and which it makes.

A fork server (forkserver.py) has torch imported, so a process that is forked from it trains at
once. The agent asks one for the launcher, of torchrun from the second round on. The launcher has
one of its own, since its workers are to be its children; it asks in the place of
`subprocess.Popen` (popen.py).
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from typing import Any, Mapping, Sequence  # noqa: UP035 - Python 3.8

LENGTH = struct.Struct("!Q")
# Standard input, output and error.
MOST_FILES = 3


def request(
    command: Sequence[str], env: Mapping[str, str], cwd: str, *, new_session: bool
) -> dict[str, Any]:
    """The message that asks for a process; its standard streams go with it."""
    return {
        "command": list(command),
        "env": dict(env),
        "cwd": cwd,
        "new_session": new_session,
        "parent": os.getpid(),
    }


def is_child(pid: int) -> bool:
    """Whether a process is a child of this one, dead or alive."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def send(connection: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Send JSON, and descriptors with it. Raises OSError."""
    content = json.dumps(message).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
    connection.sendmsg([LENGTH.pack(len(content))], [rights] if files else [])
    connection.sendall(content)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and its descriptors. Raises EOFError where nobody is left to send one."""
    files = array.array("i")
    try:
        header, rights, _, _ = connection.recvmsg(
            LENGTH.size, socket.CMSG_SPACE(MOST_FILES * files.itemsize)
        )
        for level, kind, content in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files.frombytes(content[: len(content) - len(content) % files.itemsize])
        (left,) = LENGTH.unpack(header)
        content = b""
        while left > len(content):
            part = connection.recv(min(left - len(content), 1 << 20))
            if not part:
                raise EOFError
            content += part
        message: dict[str, Any] = json.loads(content)
    except (OSError, ValueError, struct.error):
        raise EOFError from None
    return message, list(files)


def python_words(command: Sequence[str]) -> list[str]:
    """`[-m, MODULE, …]` or `[SCRIPT.py, …]` of a Python command without options but -u, else [].

    The agent's zip counts as a script.
    """
    words = list(command[1:])
    while words[:1] == ["-u"]:
        del words[0]
    if words[:1] == ["-m"]:
        return words if words[1:] and not words[1].startswith("-") else []
    return words if words and words[0].endswith((".py", ".pyz")) and words[0][0] != "-" else []


def is_buffered(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a Python command keeps its output back, as no fork server does."""
    return command[1:2] != ["-u"] and not env.get("PYTHONUNBUFFERED")
