"""`python -m ddptrain`: what is not training; `python -m ddptrain.native` trains."""

import sys

from ddptrain import fetch

COMMANDS = {"fetch": fetch.main}
USAGE = """\
usage: python -m ddptrain fetch {mnist,fashion-mnist,cifar10} --to DIR    download a data set
       python -m ddptrain.native --help         train; so do ddptrain.accelerated and ddptrain.hf
       python -m ddptrain.compare --help        measure one process, DataParallel and DDP
"""


def main(arguments: list[str]) -> int:
    """Run the command that `arguments` begin with; returns the exit code."""
    if arguments and arguments[0] in COMMANDS:
        return COMMANDS[arguments[0]](arguments[1:])
    asked = arguments[:1] in (["--help"], ["-h"])
    print(USAGE, end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
