import pytest

from ddpjob.times import as_timestamp, duration, seconds_since, timestamp, unix_seconds


def test_times_are_those_of_the_api() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00Z" and unix_seconds("1970-01-01T00:01:00Z") == 60
    assert seconds_since("1970-01-01T00:01:00Z", 90) == 30
    assert unix_seconds("1970-01-01T01:00:00.5+01:00") == 0.5
    assert unix_seconds("1970-01-01T00:01:00") == 60, "not this machine's time"


@pytest.mark.parametrize("seconds", [-1.0, 1e12, float("inf"), -1e300])
def test_a_moment_out_of_all_years_has_a_time_too(seconds: float) -> None:
    assert unix_seconds(timestamp(seconds)) in (0, 253402300799)


# The API server takes all but the last five for times: its check is not a parser's.
@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T12:00:00+99:99",
        "2026-01-31T12:00:00-24:00",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-23:59",
        "2026-01-31T12:00:00x5Z",
        "2026-01-31T12:00:00." + "9" * 60 + "Z",
        "2026-13-45T00:00:00Z",
        "now",
        "",
        "\u0662026-01-31T12:00:00Z",
        "1" * 1_000_000,
    ],
)
def test_what_is_no_time_counts_as_none(text: str) -> None:
    seconds = unix_seconds(text)
    assert seconds is None or abs(seconds) < 1e12
    assert isinstance(seconds_since(text, 5.0), float)
    assert as_timestamp(text) is None or unix_seconds(as_timestamp(text)) is not None


def test_without_a_time_no_time_has_passed() -> None:
    assert seconds_since(None, 5.0) == 0.0 == seconds_since("never", 5.0)
    assert unix_seconds(None) is None and as_timestamp(None) is None
    assert as_timestamp("2026-01-31T13:00:00.25+01:00") == "2026-01-31T12:00:00Z"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.1, "1s"),
        (14, "14s"),
        (60, "1m"),
        (200, "3m20s"),
        (7500, "2h5m"),
        (97200, "1d3h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text
