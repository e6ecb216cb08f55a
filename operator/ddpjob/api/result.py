"""The model of `status.result`."""

from typing import Annotated

from pydantic import Field

from ddpjob.api.base import Model
from ddpjob.names import MAX_RESULT


class Result(Model):
    """`result` is what rank 0 has left in its result file when it ended well."""

    value: Annotated[str, Field(max_length=MAX_RESULT, pattern="^[ -~]*$")] | None = None
    """`value` is the value as JSON. It is absent if it is no JSON or larger than 2048 bytes."""
    size_bytes: Annotated[int, Field(ge=0, le=2**53 - 1)]
    """`sizeBytes` is the size of the value in bytes."""
