"""One failed process, judged by its exception."""

import pytest

from ddpjob_agent.failures.failures import names_peer_end, one_line
from tests.unit.agent.samples import PEER_ENDS, SPAWN

PRIMARY = [
    ("ValueError", "Connection closed by peer"),
    ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
    ("BrokenPipeError", "[Errno 32] Broken pipe"),
    ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (4x3 and 4x1)"),
    ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed."),
    # The store only waits for such a rank, and says less.
    ("DistNetworkError", "The client socket has timed out after 4000ms while trying to connect to"),
    ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
    ("DistBackendError", "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0"),
]


@pytest.mark.parametrize(("kind", "text"), PEER_ENDS)
def test_a_peers_noise_is_told(kind: str, text: str) -> None:
    assert names_peer_end(kind, text)


@pytest.mark.parametrize(("kind", "text"), PRIMARY)
def test_an_own_failure_is_no_noise(kind: str, text: str) -> None:
    assert not names_peer_end(kind, text)


LOADER = """Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "data.py", line 3, in __getitem__
    return table[i]
KeyError: 'missing'
"""
STATE = "Error(s) in loading state_dict for Linear:\n\tsize mismatch for weight: copying a param"


@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        ("ValueError", "boom", ("ValueError", "ValueError: boom")),
        ("ValueError", "\n boom\nand more", ("ValueError", "ValueError: boom")),
        ("AssertionError", "", ("AssertionError", "AssertionError")),
        ("KeyError", LOADER, ("KeyError", "KeyError: 'missing'")),
        ("ProcessRaisedException", SPAWN, ("Trouble", "mine.Trouble: boom")),
        (
            "RuntimeError",
            STATE,
            (
                "RuntimeError",
                "RuntimeError: Error(s) in loading state_dict for Linear: size mismatch for "
                "weight: copying a param",
            ),
        ),
    ],
)
def test_an_exception_is_one_line(kind: str, text: str, line: tuple[str, str]) -> None:
    assert one_line(kind, text) == line
