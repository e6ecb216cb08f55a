"""What the upgrade on kind compares; `make upgrade-check` runs it."""

from tests.e2e.upgrade import differences


def test_a_changed_value_is_a_difference_and_a_renamed_field_is_none() -> None:
    before = {"status": {"attempt": 0, "budget": {"inRow": 2, "charged": 1}}, "pods": {"a": "1"}}
    after = {"status": {"attempt": 1, "budget": {"new": 0, "charged": 1}}, "pods": {"a": "1"}}
    assert list(differences(before, after)) == [".status.attempt was 0, is 1"]


def test_a_pod_that_is_gone_or_new_is_a_difference() -> None:
    before, after = {"pods": {"a": "1"}}, {"pods": {"a": "1", "b": "2"}}
    assert len(list(differences(before, after))) == len(list(differences(after, before))) == 1
