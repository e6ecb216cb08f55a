"""Completes `kubectl ddpjob …`, for which kubectl runs the program `kubectl_complete-ddpjob`.

It gives that program the words after `ddpjob`, the last of which is to be completed, and reads the
completions and `:DIRECTIVE`, as cobra's own programs print them.
"""

import os
import shlex
import sys

from ddpjob.cli.say import say

# Files are completed where there is no other completion, as in the scripts of `ddpjob completion`.
DIRECTIVE = ":0"


def complete() -> None:
    """Print the completions of the arguments: the entry point of `kubectl_complete-ddpjob`."""
    from ddpjob.cli import main

    words = ["ddpjob", *sys.argv[1:]]
    os.environ["_DDPJOB_COMPLETE"] = "complete_bash"
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = shlex.join(words), str(len(words) - 1)
    sys.argv = words[:1]
    try:
        main()
    finally:
        say(DIRECTIVE)
