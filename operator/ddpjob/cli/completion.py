"""The completion of `kubectl ddpjob`.

kubectl completes `kubectl ddpjob …` by the program `kubectl_complete-ddpjob`. It gives that program
the words after `ddpjob`, the last of which is to be completed, and reads the completions and
`:DIRECTIVE`, as cobra's own programs print them.
"""

import os
import shlex
import sys

from ddpjob.cli import main
from ddpjob.cli.output import say

# Files are completed where there is no other completion, as in the scripts of typer.
DIRECTIVE = ":0"


def complete() -> None:
    """Print the completions of the arguments: the entry point of `kubectl_complete-ddpjob`."""
    words = ["ddpjob", *sys.argv[1:]]
    os.environ["_DDPJOB_COMPLETE"] = "complete_bash"
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = shlex.join(words), str(len(words) - 1)
    sys.argv = words[:1]
    try:
        main()
    finally:
        say(DIRECTIVE)
