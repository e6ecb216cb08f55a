"""What the ranks run: arguments, variables and code, of which a later round may get others.

The operator posts them to rank 0's agent, from which the other nodes get them: a line of JSON, and
after it the archive of the code. An order has the print of the line, and the line has the SHA-256
of the archive, so no node begins a round with something else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from typing import TYPE_CHECKING, Any, Mapping  # noqa: UP035 - Python 3.8

if TYPE_CHECKING:
    from ddpjob_agent.config import Config

# More than a spec and four ConfigMaps have.
PROGRAM_BYTES = 8 * 2**20
# Of these files the latest stay: another node may be late.
KEPT = 2
PREFIX, ARCHIVE = "program-", "code.tar.gz"
# As in a container's arguments and variables: $$ is a dollar sign.
REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


class Program:
    """What the ranks of this pod run: at first what the pod was made with."""

    def __init__(self, config: Config, arguments: list[str]) -> None:
        self.config, self.arguments = config, arguments

    def is_another(self, wanted: str) -> bool:
        """Whether an order with this print wants another one than this."""
        return self.config.takes_programs and wanted not in ("", self.config.program)

    def become(self, wanted: str) -> bool:
        """Be the one with this print, which is here; whether its variables are others.

        It is tried once: an order of the same is no order of another. Raises OSError, ValueError.
        """
        config = self.config
        config.program = wanted
        with open(path_of(config.run_dir, wanted), "rb") as file:
            found, archive = json.loads(file.readline()), file.read()
        env = found["env"]
        changes = {name for name, value in env.items() if os.environ.get(name) != value}
        os.environ.update(env)
        self.arguments[:] = [expand(word, os.environ) for word in found["args"]]
        if config.code_parts:  # else the code is where it is
            place = found["path"] or os.path.join(config.run_dir, ARCHIVE)
            if not found["path"]:
                with open(place, "wb") as file:
                    file.write(archive)
            config.code_parts, config.code_sha256 = [place], found["code"]
        return bool(changes)


def expand(text: str, env: Mapping[str, str]) -> str:
    """The text with each known `$(NAME)` replaced, as a kubelet does it."""

    def value(match: Any) -> str:
        name = match.group(1)
        return "$" if name is None else env.get(name, match.group(0))

    return REFERENCE.sub(value, text)


def path_of(run_dir: str, wanted: str) -> str:
    """The file that has the program with this print."""
    return os.path.join(run_dir, PREFIX + wanted)


def keep(run_dir: str, content: bytes) -> None:
    """Keep a program, under its line's print. Raises OSError, or ValueError for a part of it."""
    line, _, archive = content.partition(b"\n")
    if archive and hashlib.sha256(archive).hexdigest() != json.loads(line)["code"]:
        raise ValueError("the archive has another SHA-256")
    with tempfile.NamedTemporaryFile(dir=run_dir, delete=False) as file:
        file.write(content)
    os.replace(file.name, path_of(run_dir, hashlib.sha256(line).hexdigest()[:16]))
    with contextlib.suppress(OSError):
        found = [entry.path for entry in os.scandir(run_dir) if entry.name.startswith(PREFIX)]
        for old in sorted(found, key=os.path.getmtime)[:-KEPT]:
            os.unlink(old)
