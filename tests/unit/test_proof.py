import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob import names
from ddpjob.plan.own import (
    MAX_ROOTS,
    Proofs,
    is_own,
    print_of,
    root_of,
    sort_pods,
    with_own,
    with_root,
)
from ddpjob.plan.podrecord import pod_record
from tests.builders import IDENTITY, STRANGERS, UID, job, pod, running


@pytest.mark.parametrize("nnodes", [1, 2, 3, 5, 8, 9, 5000])
def test_every_pod_of_an_attempt_leads_to_its_root_from_its_own_rank_alone(nnodes: int) -> None:
    own = Proofs(b"key", UID, 0, 0, nnodes)
    for rank in {0, nnodes // 2, nnodes - 1}:
        assert root_of(own.of(rank), rank) == own.root and len(own.of(rank)) <= 299
        assert root_of(own.of(rank), rank + 1) != own.root
    assert len(own.root) == 22


def test_another_key_job_or_attempt_has_another_root() -> None:
    roots = {
        Proofs(*of, 3).root
        for of in (
            *((b"a", "x", 0, 0), (b"b", "x", 0, 0), (b"a", "y", 0, 0)),
            *((b"a", "x", 1, 0), (b"a", "x", 0, 1)),
        )
    }
    assert len(roots) == 5


@given(st.text() | st.binary(max_size=600).map(lambda b: base64.urlsafe_b64encode(b).decode()))
def test_what_is_no_proof_leads_nowhere(text: str) -> None:
    own = Proofs(b"key", UID, 0, 0, 4)
    assert root_of(text, 1) != own.root
    assert root_of("A" * 10_000, 0) == ""


def test_a_proof_with_a_changed_or_a_missing_part_leads_elsewhere() -> None:
    own = Proofs(b"key", UID, 0, 0, 4)
    proof = own.of(1)
    for place in range(len(proof) - 2):  # the last character's low bits say nothing
        changed = proof[:place] + ("A" if proof[place] != "A" else "B") + proof[place + 1 :]
        assert root_of(changed, 1) != own.root
    assert root_of(proof[:43], 1) != own.root


def test_a_copied_proof_is_of_no_use_once_the_uid_is_known() -> None:
    own = Proofs(b"", UID, 0, 0, 2)
    status = with_root(job(status={"state": "Starting"}).status, own.root)
    genuine, copied = pod(0, root=own.root), pod(0, root=own.root, uid="another")
    assert is_own(status, genuine) and not is_own(status, pod(0, root=STRANGERS))
    known = with_own(status, [genuine])
    assert is_own(known, genuine) and not is_own(known, copied)
    assert is_own(known, pod(1, root=own.root)), "whose uid is not known yet"
    assert known.pods[0].uids == print_of(genuine.uid) and with_own(known, [genuine]) is known


def test_uids_stand_at_their_ranks() -> None:
    status = with_root(job(status={"state": "Starting"}).status, "r")
    status = with_own(with_own(status, [pod(3)]), [pod(1)])
    prints = [status.pods[0].uids[i : i + 6] for i in range(0, 24, 6)]
    assert prints == ["......", pod(1).uid_print, "......", pod(3).uid_print]


def test_a_job_of_an_earlier_version_is_taken_as_it_is_found_and_once() -> None:
    before = job(status={"state": "Running", "attempt": 2}).status
    ours = running(0, attempt=2)
    assert is_own(before, ours)
    after = with_own(before, [ours, running(1, attempt=2)])
    assert is_own(after, ours) and not is_own(after, running(0, attempt=2, uid="another"))
    assert not is_own(job(status={"state": "Pending"}).status, running(0))
    assert not is_own(job(status={"state": "Suspended"}).status, running(0))


def test_status_keeps_this_attempt_and_the_one_before_and_few_roots() -> None:
    status = job(status={"state": "Starting"}).status
    for attempt in range(4):
        status = status.model_copy(update={"attempt": attempt})
        for root in range(MAX_ROOTS + 2):
            status = with_root(status, f"{attempt}-{root}")
    assert [table.attempt for table in status.pods] == [2, 3]
    assert status.pods[1].roots == [f"3-{n}" for n in range(2, MAX_ROOTS + 2)]


def test_a_pod_belongs_to_a_job_of_its_own_namespace_alone() -> None:
    ours = job(status={"state": "Running"})
    pods = sort_pods(ours, ours.status, [pod(0), pod(1, namespace="another")])
    assert [p.namespace for p in pods.current] == ["team"] and not pods.strays
    pods = sort_pods(ours, ours.status, [pod(0, owner_uid="x"), pod(9), pod(0, attempt=1)])
    assert not pods.current and [p.rank for p in pods.strays] == [9] and len(pods.ahead) == 1


@pytest.mark.parametrize(
    ("owner", "is_ours"),
    [
        ({}, True),
        ({"apiVersion": "evil.example.com/v1"}, False),
        ({"apiVersion": f"{names.GROUP}/v9"}, True),
        ({"uid": "x" * 200_000}, False),
    ],
)
def test_only_a_job_of_ours_is_an_owner(owner: dict[str, str], is_ours: bool) -> None:
    named = IDENTITY["ownerReferences"][0] | owner
    body = {"metadata": {**IDENTITY, "ownerReferences": [named]}}
    assert (pod_record(body) is not None) == is_ours
