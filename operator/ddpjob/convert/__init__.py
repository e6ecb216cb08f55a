"""Turns jobs of other operators into DDPJobs, and says what is different in them.

It is pure: an object goes in, a DDPJob and notes come out. `fields` reads the input so that nothing
is lost in silence. `command`, with `torchrun` and `accelerate`, finds the launcher. `pod` reads a
pod template, and `draft` and `master` make parts of a spec of it. `pytorchjob` and `trainjob` know
one kind each. `result` checks what comes out.
"""

from ddpjob.convert.fields import Note
from ddpjob.convert.objects import (
    Converted,
    convert,
    flattened,
    is_foreign,
    is_runtime,
    runtimes_of,
)
from ddpjob.convert.runtimes import Runtimes

__all__ = [
    "Converted",
    "Note",
    "Runtimes",
    "convert",
    "flattened",
    "is_foreign",
    "is_runtime",
    "runtimes_of",
]
