"""What the API server, or a gateway before it, says of itself."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddpjob.cluster import kube


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("1", 1.0), ("60", 60.0), ("3600", 60.0), ("9" * 400, 60.0)),
        *((text, None) for text in ("", "²", "-1", "1.5", "soon", "Wed, 21 Oct 2026 07:28:00 GMT")),
    ],
)
def test_nothing_keeps_us_away_for_longer_than_a_minute(text: str, seconds: float | None) -> None:
    answer = SimpleNamespace(headers={"Retry-After": text}, status=503, reason="Unavailable")
    error = kube._error(cast(Any, answer), b"<html>maintenance")
    assert error.retry_after == seconds and "maintenance" in str(error)
