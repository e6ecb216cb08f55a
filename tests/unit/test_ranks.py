import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob.ranks import format_ranks, parse_ranks

NNODES = 5000  # the most that a job may have
MOST = 20_000  # characters of status.succeededRanks


@given(st.sets(st.integers(0, NNODES - 1), max_size=60))
def test_rank_sets_survive_their_text(ranks: set[int]) -> None:
    assert parse_ranks(format_ranks(ranks), NNODES) == ranks


def test_rank_sets_are_compact() -> None:
    assert format_ranks({7, 0, 1, 2, 3}) == "0-3,7"


@pytest.mark.parametrize("width", [1, 2, 3])
def test_the_longest_text_of_the_largest_job_has_room_in_status(width: int) -> None:
    """Every rank but one in `width + 1` has ended well."""
    ranks = {rank for rank in range(NNODES) if rank % (width + 1) < width}
    text = format_ranks(ranks)
    print(f"{len(text)} characters")
    assert len(text) < MOST and parse_ranks(text, NNODES) == ranks


def test_what_the_job_has_not_is_left_out() -> None:
    assert parse_ranks("0-3,7", 3) == {0, 1, 2}
    assert parse_ranks("5,9-12", 3) == set()
    assert parse_ranks("2-9", 4) == {2, 3}


@pytest.mark.parametrize(
    "text",
    ["0-", "-1", "a", "1,,2", "1 ,2", "0-9999999", "99999", "0x1", "1-2-3", "\u0661", "1\n", " "],
)
def test_a_text_that_nobody_of_ours_wrote_has_no_ranks(text: str) -> None:
    assert parse_ranks(text, NNODES) == set()


def test_a_span_that_goes_back_is_empty() -> None:
    assert parse_ranks("3-1,4", NNODES) == {4}


@pytest.mark.parametrize("text", ["0-9999", "0-4999," * 2857 + "0", "0-9999," * 2857 + "9999"])
def test_each_rank_is_looked_at_once_however_often_it_is_there(text: str) -> None:
    """`0-9999999` took 1.2 GiB and 18 s; overlapping spans would take as long by another way."""
    tracemalloc.start()
    try:
        assert parse_ranks(text, 4) == {0, 1, 2, 3}
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert parse_ranks(text, NNODES) == set(range(NNODES))
