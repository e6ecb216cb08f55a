"""Finds the launcher of a container's command and arguments."""

import posixpath
import re
from collections.abc import Sequence

from ddpjob.convert.accelerate import read_accelerate
from ddpjob.convert.fields import Notes
from ddpjob.convert.program import Program, is_python_name
from ddpjob.convert.torchrun import read_torchrun

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"})
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_ACCELERATE_MODULES = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")
_LAUNCHERS = frozenset(
    {
        *("torchrun", "accelerate", "accelerate-launch"),
        *(*_TORCHRUN_MODULES, *_ACCELERATE_MODULES),
    }
)
_OTHER_PYTHON = "ddpjob starts python3 of the image's PATH, which may be another Python"
# Names of pods that only exist for the other operators, such as `mnist-master-0`.
_FOREIGN_PODS = re.compile(r"-(master|worker|node-0)-[0-9]", re.ASCII)
_FOREIGN_OPTIONS = re.compile(r"--(rdzv|master|node|machine|main_process)[-_][a-z]+", re.ASCII)


def read_command(command: Sequence[str], args: Sequence[str], where: str, notes: Notes) -> Program:
    """Return how a container with this command and these arguments starts.

    `where` is the path of the container.
    """
    if not command:
        reason = "the image's entry point runs, without ddpjob's agent"
        advice = "name the program in command, to have steps, first causes and restarts in place"
        notes.changed(f"{where}.command", f"absent: {reason}; {advice}")
        return Program("none", args=tuple(args))
    where, words = f"{where}.command", [*command, *args]
    program = _launcher(words, where, notes) or _python(words, where, notes)
    if program is None:
        _explain(words, where, notes)
        program = Program("none", command=tuple(command), args=tuple(args))
    if _FOREIGN_PODS.search(" ".join((*program.command, *program.args))):
        notes.lost(where, "names a pod of the other operator; the pod of rank 0 is in MASTER_ADDR")
    return program


def _launcher(words: Sequence[str], where: str, notes: Notes) -> Program | None:
    """Return the program of a command that begins with torchrun or accelerate, or None."""
    name, length = _called(words)
    rest = words[length:]
    if "/" in words[0] and name in _LAUNCHERS:
        notes.changed(where, _OTHER_PYTHON)
    if name in ("torchrun", *_TORCHRUN_MODULES):
        return read_torchrun(words[:length], rest, where, notes)
    if name == "tune" and words[1:2] == ["run"]:
        return read_torchrun(words[:2], words[2:], where, notes)
    if name == "accelerate-launch" or name == _ACCELERATE_MODULES[0]:
        return read_accelerate(rest, where, notes)
    if name in ("accelerate", _ACCELERATE_MODULES[1]) and rest[:1] == ["launch"]:
        return read_accelerate(rest[1:], where, notes)
    return None


def _called(words: Sequence[str]) -> tuple[str, int]:
    """Return the program's name, or that of Python's module, and how many words name it."""
    place = 1
    if is_python_name(words[0]):
        place += words[1:2] == ["-u"]
        if words[place : place + 1] == ["-m"] and len(words) > place + 1:
            return words[place + 1], place + 2
    return posixpath.basename(words[0]), 1


def _python(words: Sequence[str], where: str, notes: Notes) -> Program | None:
    """Return the program of `python SCRIPT …` and `python -m MODULE …`, or None."""
    if not is_python_name(words[0]):
        return None
    rest = [*words[1:]]
    if rest[:1] == ["-u"]:
        rest = rest[1:]
    is_module = rest[:1] == ["-m"] and len(rest) > 1
    if not rest or not rest[0] or rest[0].startswith("-") and not is_module:
        return None  # python -c CODE, and options of Python's own
    if words[0] not in ("python", "python3"):
        notes.changed(where, _OTHER_PYTHON)
    return Program("python", args=tuple(rest))


def _explain(words: Sequence[str], where: str, notes: Notes) -> None:
    """Note that the command is carried over as it is, and what in it may not fit."""
    if posixpath.basename(words[0]) in _SHELLS:
        advice = "a launcher with args restarts sooner"
        notes.changed(where, f"a shell: carried over as command, as it is; {advice}")
    elif _called(words)[0] in _LAUNCHERS:
        reason = "has no script, or an option that is not known here"
        notes.changed(where, f"the launcher {reason}: carried over as command, as it is")
    elif is_python_name(words[0]):
        notes.changed(where, "Python without a script: carried over as command, as it is")
    else:
        notes.changed(where, "no launcher that ddpjob has: carried over as command, as it is")
    if found := sorted({option[0] for option in _FOREIGN_OPTIONS.finditer(" ".join(words))}):
        rule = "RANK is the node's rank, WORLD_SIZE the number of nodes; MASTER_ADDR, MASTER_PORT"
        notes.changed(where, f"{', '.join(found)}: must agree with ddpjob's variables ({rule})")
