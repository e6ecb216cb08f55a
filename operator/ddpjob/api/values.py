"""The kinds of values that a status has: bounded, and printable where people read them."""

from collections.abc import Callable
from sys import float_info
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema

from ddpjob import names
from ddpjob.api.base import Broken, broken_rules
from ddpjob.ranks import MAX_NNODES
from ddpjob.text import printable, printable_bytes, printable_end
from ddpjob.times import unix_seconds

MAX_REASON = 1024
MAX_CONDITIONS = 16
# Characters of `summary.reason`, which is a column.
MAX_COLUMN = 128
MAX_POINTS = 64
# Characters of `failure.traceback`.
MAX_TRACEBACK = 2048
# Bytes of a message in `history`.
MAX_ENTRY = 512
# JSON readers keep integers exact up to here.
_EXACT = 2**53 - 1
NUMBER = r"^(nan|-?inf|-?[0-9]+(\.[0-9]+)?(e[+-][0-9]{2,3})?)$"
RATIO = r"^[01]\.[0-9]{3}$"
NODES = r"^[0-9]{1,16}/[0-9]{1,16}(\+[0-9]{1,2})?$"
TALLY = "^[0-9]{1,16}(/[0-9]{1,16})?$"
PLACE = "^[0-9]{1,16}[.][0-9]{1,16}$"
DURATION = "^[0-9]{1,16}[dhms]([0-9]{1,2}[hms])?$"
STAMP = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"


def _printable(limit: int, shown: Callable[[str, int], str] = printable) -> BeforeValidator:
    """Return a validator that cuts and escapes a text that people will read."""
    return BeforeValidator(lambda text: shown(text, limit) if isinstance(text, str) else text)


def _whole_number(count: Any) -> Any:
    """Return `count` with room above it, so that the next number can be written too."""
    return min(count, 2**52) if isinstance(count, int) else count


def _time(text: str) -> str:
    if unix_seconds(text) is None:
        raise broken_rules(Broken("must be a time"))
    return text


def _point(value: Any) -> list[int | float]:
    """Return a point of the curve; its step is a whole number."""
    numbers = value if isinstance(value, list) and 2 <= len(value) <= 3 else ()
    # NaN is within no bounds.
    finite = all(type(n) in (int, float) and abs(n) <= float_info.max for n in numbers)
    if not (numbers and finite and 0 <= numbers[0] <= _EXACT and numbers[0] == int(numbers[0])):
        raise broken_rules(Broken("must be a step, a loss and perhaps samples per second"))
    return [int(numbers[0]), *numbers[1:]]


# A reason of a pod, of Kubernetes or of a webhook. It may quote anybody.
Words = Annotated[str, Field(max_length=1024), _printable(1024)]
Message = Annotated[str, Field(max_length=4096), _printable(4096)]
# A name of a pod, a node or an exception that anybody may have written into the status.
Name = Annotated[str, Field(max_length=253), _printable(253)]
ConditionType = Annotated[str, Field(max_length=316), _printable(316)]
# A name of a metric or of a signal.
ShortName = Annotated[str, Field(max_length=63), _printable(63)]
# The same shorter: a column of `kubectl get`, and the message of an entry of the history.
Column = Annotated[str, Field(max_length=MAX_COLUMN), _printable(MAX_COLUMN)]
Entry = Annotated[str, Field(max_length=MAX_ENTRY), _printable(MAX_ENTRY, printable_bytes)]
Traceback = Annotated[
    str, Field(max_length=MAX_TRACEBACK), _printable(MAX_TRACEBACK, printable_end)
]
# A time as `times.timestamp` writes it.
Stamp = Annotated[
    str,
    Field(max_length=20, pattern=STAMP, json_schema_extra={"format": "date-time"}),
    AfterValidator(_time),
]
# A number that the operator reads and raises.
Count = Annotated[int, Field(ge=0, le=_EXACT), BeforeValidator(_whole_number)]
Step = Annotated[int, Field(ge=0, le=_EXACT)]
AttemptNumber = Annotated[int, Field(ge=0, le=names.MAX_ATTEMPT)]
NodeCount = Annotated[int, Field(ge=0, le=MAX_NNODES)]
# A number that may be NaN or infinite. JSON has no such numbers, so it is a string.
Number = Annotated[str, Field(max_length=32, pattern=NUMBER)]
# Step, loss, and samples per second if they are known. A union of lists would have errors at
# places that the value does not have.
Point = Annotated[
    list[int | float],
    PlainValidator(_point),
    WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3}),
]
