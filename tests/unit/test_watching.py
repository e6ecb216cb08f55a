"""Watches that begin again look like ones that never ended."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpjob.cluster import WatchEvent
from ddpjob.cluster.watching import Seen, read_event
from ddpjob.errors import Expired, Unavailable


def body(name: str, version: int, uid: str = "u") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "n", "uid": uid, "resourceVersion": f"{version}"}
    }


def told(events: Any) -> list[tuple[str, str]]:
    return [(event.type, event.object["metadata"]["name"]) for event in events]


def test_only_news_are_told() -> None:
    seen = Seen()
    assert told(seen.listed([body("a", 1), body("b", 2)])) == [("ADDED", "a"), ("ADDED", "b")]
    assert told(seen.changed(WatchEvent("ADDED", body("a", 1)))) == []
    assert told(seen.changed(WatchEvent("MODIFIED", body("a", 3)))) == [("MODIFIED", "a")]
    assert told(seen.listed([body("a", 4)])) == [("MODIFIED", "a"), ("DELETED", "b")]
    assert told(seen.changed(WatchEvent("DELETED", body("a", 5)))) == [("DELETED", "a")]
    assert told(seen.changed(WatchEvent("DELETED", body("a", 5)))) == []


def test_another_object_of_the_name_ends_the_first() -> None:
    seen = Seen()
    list(seen.listed([body("a", 1, "one")]))
    changes = list(seen.listed([body("a", 2, "two")]))
    assert [(each.type, each.object["metadata"]["uid"]) for each in changes] == [
        ("DELETED", "one"),
        ("ADDED", "two"),
    ]


@settings(max_examples=200)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(1, 5)), max_size=8))
def test_after_each_list_the_reader_knows_what_there_is(lists: list[dict[str, int]]) -> None:
    seen, known = Seen(), dict[str, str]()
    for present in lists:
        for event in seen.listed([body(name, version) for name, version in present.items()]):
            meta = event.object["metadata"]
            assert (meta["name"] in known) is (event.type != "ADDED")
            if event.type == "DELETED":
                del known[meta["name"]]
            else:
                known[meta["name"]] = meta["resourceVersion"]
        assert known == {name: str(version) for name, version in present.items()}


def test_an_event_is_read_or_refused() -> None:
    event = read_event(json.dumps({"type": "ADDED", "object": body("a", 1)}).encode())
    assert event.type == "ADDED"
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    with pytest.raises(Expired, match="too old"):
        read_event(json.dumps({"type": "ERROR", "object": status}).encode())
    with pytest.raises(Unavailable):
        read_event(b"{")
