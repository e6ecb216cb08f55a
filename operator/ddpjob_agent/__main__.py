"""What Python runs of the zip: `python3 -u agent.pyz torchrun -- ARGS…`, or `… command -- CMD…`.

`… python -- CMD…` is a command of Python's whose processes may be forked, as torchrun's are.
The agent starts the launcher, says what the launcher waits for, serves /progress, /metrics
and /stacks, ends the attempt where no step is made for too long, forwards signals, reaps orphans
(it is PID 1), and ends with a documented exit code and one JSON object as its termination message.
Formats and codes: docs/progress.md. All settings come from the environment.

Mounted into images of other people: standard library only, Python 3.8 or newer, no import of ours.
"""

from __future__ import annotations

import os
import sys
from importlib.util import spec_from_file_location
from typing import TYPE_CHECKING, Any
from zipimport import zipimporter

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from ddpjob_agent.config import Config
    from ddpjob_agent.warm.forked import Program


# Those in this one, which zipimport finds.
PACKAGES = ("failures", "nodes", "warm")


class Modules:
    """Finds the modules of this package. zipimport's own finder compiles each of them twice."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a module of this package; None for every other module."""
        package, *parts = name.split(".")
        if package != "ddpjob_agent" or not parts or parts[-1] in PACKAGES:
            return None
        folder = os.path.join(self.folder, *parts[:-1])
        file = os.path.join(folder, f"{parts[-1]}.py")
        return spec_from_file_location(name, file, loader=zipimporter(folder))


def main(arguments: list[str]) -> int | Program:
    """Run what the command line asks for; the exit code, or what a forked process is to run."""
    if arguments[:1] == ["forkserver"]:
        from ddpjob_agent.warm.forked import serve_alone

        return serve_alone(arguments[1])
    if arguments[:1] == ["launch"]:  # torchrun, in the process that `run` starts
        if arguments[1].isdecimal():
            from ddpjob_agent.warm.forked import launch_warm

            return launch_warm(arguments[1], arguments[2:])
        from ddpjob_agent.warm.launch import launch_torchrun

        launch_torchrun(arguments[2:])
    from ddpjob_agent.config import Config, ConfigError

    mode, command = arguments[0], arguments[2:]
    try:
        config = Config(os.environ)
        os.environ.pop("DDPJOB_TOKEN", None)  # no rank needs it
    except ConfigError as problem:
        from ddpjob_agent.failures import verdict

        path = os.environ.get("DDPJOB_TERMINATION_LOG") or "/dev/termination-log"
        return verdict.conclude(verdict.refused(str(problem)), {}, path)
    return run(config, mode, command)


def run(config: Config, mode: str, arguments: list[str]) -> int:
    """Start the launcher and watch over it; the exit code.

    What the launcher does not need is imported, and so compiled, while it starts.
    """
    from ddpjob_agent.processes import Launcher
    from ddpjob_agent.start import Setup, master_of, start

    launcher = Launcher(config.grace_seconds, keeps_server=config.in_place)
    launcher.catch_signals()
    setup = Setup(config)
    if config.code_dir:
        from ddpjob_agent.code import lay_down

        problem = lay_down(config)
        if problem is not None:
            from ddpjob_agent.failures.verdict import conclude

            return conclude(problem, {}, config.termination_log)
    # In the place of another pod it is started once the others are ready.
    is_late = config.joins_others
    master = master_of(config) if is_late else start(launcher, config, mode, arguments, setup)
    from ddpjob_agent.rounds import Rounds

    return Rounds(config, mode, arguments, launcher, setup).run(master)


if __name__ == "__main__":
    import ddpjob_agent

    sys.meta_path.insert(0, Modules(os.path.dirname(os.path.abspath(ddpjob_agent.__file__))))
    del ddpjob_agent, sys.path[0]  # whatever torchrun imports is not in the zip
    program = main(sys.argv[1:])
    if isinstance(program, int):
        sys.exit(program)
    # A forked process. Its script stands on this frame alone, and ends as the interpreter ends it.
    try:
        if program.module:
            program.run_module(program.module)
        else:
            exec(program.compiled(), program.names)
    except SystemExit:
        raise
    except BaseException:
        program.hide_frames()
        raise
