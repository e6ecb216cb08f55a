"""What KubeCluster makes of answers that a gateway has spoilt."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddpjob.cluster import DDPJOBS, kube
from ddpjob.cluster.credentials import Credentials
from ddpjob.cluster.kube import KubeCluster
from ddpjob.errors import Unavailable
from tests.garbled import EVENT, PAGE, answering


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("1", 1.0), ("60", 60.0), ("3600", 60.0), ("9" * 400, 60.0)),
        *((text, None) for text in ("", "²", "-1", "1.5", "soon", "Wed, 21 Oct 2026 07:28:00 GMT")),
    ],
)
def test_a_retry_after_header_delays_a_request_for_a_minute_at_most(
    text: str, seconds: float | None
) -> None:
    answer = SimpleNamespace(headers={"Retry-After": text}, status=503, reason="Unavailable")
    error = kube._error(cast(Any, answer), b"<html>maintenance")
    assert error.retry_after == seconds and "maintenance" in str(error)


@pytest.mark.parametrize("garbage", [b"[]", b"{}", b"7", PAGE])
async def test_an_answer_that_is_no_object_is_no_success(garbage: bytes) -> None:
    async with answering([garbage], [EVENT]) as url:
        cluster = KubeCluster(Credentials(url))
        with pytest.raises(Unavailable, match="Garbled"):
            await cluster.get(DDPJOBS, "team", "digits")
        await cluster.close()
