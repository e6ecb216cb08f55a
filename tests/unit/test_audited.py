"""What the api tier reads from the audit log of an operator that is killed."""

from typing import Any

from tests.api.audited import is_creation, made_a_pod, raised_before_deleted
from tests.cluster import operator as operators
from tests.cluster.audit import Entry


def entry(verb: str, resource: str, name: str, code: int, sent: Any = None) -> Entry:
    of, _, part = resource.partition("/")
    return Entry(
        {
            "user": {"username": operators.USER},
            "verb": verb,
            "objectRef": {"resource": of, "subresource": part, "name": name},
            "requestObject": sent or {},
            "responseStatus": {"code": code},
        }
    )


def status(code: int, attempt: int) -> Entry:
    sent = {"status": {"attempt": attempt}}
    return entry("update", "ddpjobs/status", "digits", code, sent)


def test_a_write_that_nobody_waited_for_may_have_been_made() -> None:
    deletion = entry("delete", "pods", "digits-0-1", 200)
    assert not raised_before_deleted([deletion])
    assert not raised_before_deleted([status(200, 0), status(409, 1), deletion])
    for code in (200, 504, 0):
        assert raised_before_deleted([status(200, 0), status(code, 1), deletion])


def test_only_a_creation_that_was_answered_counts() -> None:
    codes = (201, 504, 409)
    creations = [entry("create", "pods", "digits-0-1", code) for code in codes]
    assert [is_creation(one) for one in creations] == [True, True, False]
    assert [made_a_pod(one) for one in creations] == [True, False, False]
