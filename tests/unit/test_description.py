"""What `ddpjob describe` says of a job, by its object alone."""

from typing import Any

import pytest

from ddpjob import api, names, why
from ddpjob.cli.describe import text
from ddpjob.client.description import DEFAULT_RESTARTS, describe
from ddpjob.client.snapshot import Snapshot
from ddpjob.text import printable
from ddpjob.times import timestamp
from tests.builders import NOW, job_object

GPUS = {"limits": {"nvidia.com/gpu": 8, "memory": "64Gi"}}


def ago(seconds: float) -> str:
    return timestamp(NOW - seconds)


def condition(kind: str, status: str, reason: str, message: str = "", since: float = 40) -> Any:
    return {
        **{"type": kind, "status": status, "reason": reason, "message": message},
        "lastTransitionTime": ago(since),
    }


def described(status: dict[str, Any], *, flags: str = "", **spec: Any) -> dict[str, Any]:
    body = job_object("llama", **{"nnodes": 4, **spec})
    body["metadata"] |= {"namespace": "team-a", "uid": "u", "creationTimestamp": ago(9 * 3600)}
    return describe(Snapshot({**body, "status": status}), [], now=NOW, flags=flags)


ESCAPE = "\x1b]0;owned\x07\u202e\n"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 88, in step\n    loss.back()'
)
RESTARTING: dict[str, Any] = {
    "state": "Restarting",
    "attempt": 3,
    "restarts": 3,
    "worldSize": 32,
    "summary": {"nodes": "0/4", "reason": "Exception r13 gpu-17"},
    "conditions": [condition("Running", "False", "Exception", "rank 13")],
    "budget": {"charged": 1},
    "goodput": {"startingSeconds": 860, "productiveSeconds": 9100, "since": ago(40)},
    "progress": {"attempt": 2, "step": 9100, "totalSteps": 50000, "loss": "2.207"},
    "failure": {
        **{"attempt": 2, "round": 0, "rank": 13, "pod": "llama-2-1", "node": "gpu-17"},
        **{"reason": "Exception", "exitCode": 1, "exception": "RuntimeError", "message": ECC},
        "traceback": TRACEBACK,
    },
    "history": [
        {
            **{"attempt": 0, "startTime": ago(30000), "endTime": ago(22200), "charged": False},
            **{"reason": "NodeLost", "rank": 5, "node": "gpu-09", "firstStep": 0, "step": 3100},
        },
        {
            **{"attempt": 1, "startTime": ago(22000), "endTime": ago(7480), "charged": True},
            **{"reason": "ExitCode", "exitCode": 1, "rank": 13, "node": "gpu-17", "step": 7400},
            "message": "CUDA error",
        },
        {
            **{"attempt": 2, "startTime": ago(7000), "endTime": ago(40), "charged": True},
            **{"reason": "Exception", "rank": 13, "node": "gpu-17", "firstStep": 7400},
            **{"step": 9100, "message": ECC},
        },
    ],
}


def test_a_restart_is_told_with_its_first_cause_and_the_attempts_before() -> None:
    found = described(RESTARTING, image="REG/llama:1", resources=GPUS)
    lines = list(text(found, NOW))
    assert lines[:6] == [
        "llama  team-a  Restarting for 40s  image REG/llama:1",
        "4 nodes x 8 GPUs  3 restarts: 1 charged since new progress, 3 allowed  useful time 91%",
        "step      9100/50000  loss 2.207",
        f"why now   rank 13 (node 1, llama-2-1 on gpu-17) exit 1: {ECC}",
        "          the first cause of attempt 2; the 31 other ranks were stopped after it",
        "  Traceback (most recent call last):",
    ]
    assert '    File "train.py", line 88, in step' in lines
    table = [" ".join(line.split()) for line in lines[8:12]]
    assert table[0] == "ATTEMPT FROM RAN STEPS CHARGED REASON WHERE MESSAGE"
    assert table[1].endswith("2h10m 0-3100 no NodeLost r5 gpu-09 -")
    assert table[2].endswith("4h2m 7400 yes ExitCode 1 r13 gpu-17 CUDA error")
    assert table[3].endswith(f"1h56m 7400-9100 yes Exception r13 gpu-17 {ECC}")
    assert lines[12:] == [
        "hint      2 failures on gpu-17: ddpjob suspend llama, then resume --exclude-node gpu-17",
        "next      ddpjob logs llama --attempt 2 --rank 13",
        "docs      https://github.com/ddpjob/ddpjob/blob/main/docs/reasons.md#exception",
    ]


@pytest.mark.parametrize(
    ("nodes", "shown"),
    [
        ({"desired": 4}, "4 nodes x 1 rank  "),
        ({"desired": 4, "spares": 2}, "4 nodes x 1 rank, 2 spares wait  "),
        ({"desired": 3, "spares": 1}, "3 of 4 nodes x 1 rank, 1 spare waits  "),
    ],
)
def test_a_smaller_group_and_spares_are_told(nodes: dict[str, int], shown: str) -> None:
    world_size = nodes["desired"]
    status = {"state": "Running", "nodes": nodes, "worldSize": world_size}
    found = described(status, elastic={"minNodes": 2})
    assert list(text(found, NOW))[1].startswith(shown)
    assert list(text(described(status), NOW))[1].startswith("4 nodes"), "from an edit on"


COMMIT = "3f2a1b9" + "c" * 33


@pytest.mark.parametrize(
    ("revision", "shown"),
    [
        (COMMIT, "3f2a1b9"),
        (f"{COMMIT}-dirty", "3f2a1b9, dirty"),
    ],
)
def test_a_commit_has_seven_digits_as_submit_says_it(revision: str, shown: str) -> None:
    body = job_object("llama", code={"sha256": "94350632" * 8, "configMaps": ["code"]})
    body["metadata"]["annotations"] = {names.REVISION_ANNOTATION: revision}
    found = describe(Snapshot(body), [], now=NOW)
    assert next(text(found, NOW)).endswith(f"  code 9435063 (git {shown})")
    assert found["code"]["revision"] == printable(revision), "whole, for scripts"


def test_text_of_others_is_printable() -> None:
    failure = {**RESTARTING["failure"], "reason": ESCAPE, "message": ESCAPE, "node": ESCAPE}
    status = {**RESTARTING, "failure": failure, "history": [failure], "summary": {"reason": ESCAPE}}
    lines = list(text(described(status), NOW))
    assert any("owned" in line for line in lines) and all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("changes", "blames"),
    [
        ({"reason": "NodeSilent"}, True),
        ({"message": "CUDA error: uncorrectable ECC error encountered"}, True),
        ({"message": "NCCL remote error, ncclRemoteError: a call failed"}, True),
        ({"exception": "OSError", "message": "[Errno 5] Input/output error: '/data/x'"}, True),
        ({"message": "CUDA error: device-side assert triggered"}, False),
    ],
)
def test_a_node_is_left_only_if_it_may_be_to_blame(changes: dict[str, Any], blames: bool) -> None:
    entry = {"reason": "Exception", "exitCode": 1, "node": "gpu-17", "message": "", **changes}
    found = described(
        {"state": "Failed", "history": [{**entry, "attempt": number} for number in range(3)]}
    )
    hint = "3 failures on gpu-17: ddpjob rerun llama --exclude-node gpu-17"
    assert found["hints"] == [hint] * blames


@pytest.mark.parametrize(
    ("reason", "message", "hint"),
    [
        (
            "Invalid",
            "spec.template.spec.hostNetwork: true is not allowed by this installation "
            "(policy.hostNetwork)",
            "ask who installed ddpjob to allow it: policy.hostNetwork",
        ),
        ("Invalid", "spec.env: must be less", "change the field, or submit the job anew"),
        ("NameTaken", "pod llama-0-0 is there", "delete the object that has the name"),
    ],
)
def test_a_job_that_is_refused_says_what_to_change_or_whom_to_ask(
    reason: str, message: str, hint: str
) -> None:
    accepted = {**condition("Accepted", "False", reason, message, 720)}
    for state, count in (("Pending", 1), ("Running", 0)):
        found = described({"state": state, "conditions": [accepted]})
        assert [hint in each for each in found["hints"]] == [True] * count


def test_a_reason_that_is_cut_in_its_column_is_told_whole() -> None:
    why_not = 'failed to pull image "x": ' + "long, " * 30 + ": no such host"
    status = {
        "state": "Starting",
        "summary": {"reason": "ErrImagePull: …no such host"},
        "conditions": [condition("Running", "False", "ErrImagePull", why_not, 720)],
    }
    assert f"why now   ErrImagePull: {why_not}" in list(text(described(status), NOW))


def test_a_pending_job_says_why() -> None:
    why_not = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu."
    status = {
        "state": "Starting",
        "summary": {"reason": f"Unschedulable: {why_not}"},
        "goodput": {"since": ago(720)},
    }
    lines = list(text(described(status), NOW))
    assert lines[0] == "llama  team-a  Starting for 12m  image trainer:1"
    assert f"why now   Unschedulable: {why_not}" in lines
    assert "next      ddpjob get -w llama" in lines
    assert lines[-1].endswith("reasons.md#unschedulable")


def test_a_job_that_no_operator_has_seen_says_so() -> None:
    found = described({}, flags=" -n team-a")
    assert found["unseen"] and found["next"] == ["ddpjob get -w llama -n team-a"]
    assert any("no operator has seen this job" in line for line in text(found, NOW))


def test_a_job_that_goes_on_tells_what_failed_before() -> None:
    status = {**RESTARTING, "state": "Running", "summary": {}}
    found = described(status)
    lines = list(text(found, NOW))
    assert any(line.startswith("before    rank 13 (node 1, ") for line in lines)
    assert not any(line.startswith("why now") for line in lines)
    assert found["next"] == ["ddpjob logs -f llama"] and found["docs"] is None


WORDS = "pod llama-0-1 is being deleted: evicted"
PLACE = {"attempt": 0, "reason": "Evicted", "pod": "llama-0-1", "node": "gpu-17", "message": WORDS}


@pytest.mark.parametrize("state", ["Failed", "Restarting"])
def test_a_pod_that_failed_as_a_whole_is_a_node_and_no_rank(state: str) -> None:
    status = {
        **{"state": state, "worldSize": 16, "nodes": {"desired": 2}, "failure": PLACE},
        "history": [{**PLACE, "endTime": ago(40)}],
    }
    found = described(status, nnodes=2, resources=GPUS)
    assert (found["cause"]["rank"], found["cause"]["nodeRank"]) == (None, 1)
    lines = list(text(found, NOW))
    at = lines.index(f"why now   node 1 (llama-0-1 on gpu-17) Evicted: {WORDS}")
    assert lines[at + 1].endswith("attempt 0; the 8 other ranks were stopped after it")
    assert any(line.endswith(f"Evicted  n1 gpu-17  {WORDS}") for line in lines)
    assert found["next"] == ["ddpjob logs llama --attempt 0 --node 1"]


def test_ranks_that_a_script_has_started_by_itself_are_named_and_read_with_their_pod() -> None:
    """By mp.spawn, or torchrun in a command: the job knows of one process in each pod."""
    failure = {**PLACE, "reason": "Exception", "rank": 3}
    found = described({"state": "Failed", "failure": failure}, nnodes=2)
    assert any("rank 3 (node 1, llama-0-1 on gpu-17) " in line for line in text(found, NOW))
    assert found["next"] == ["ddpjob logs llama --attempt 0 --node 1"]


def test_rounds_are_told_apart() -> None:
    entry = {"attempt": 0, "round": 2, "endTime": ago(1), "reason": "Signal", "signal": "SIGKILL"}
    failure = {**RESTARTING["failure"], "attempt": 0, "round": 2}
    lines = list(text(described({**RESTARTING, "history": [entry], "failure": failure}), NOW))
    assert any(line.startswith("0.2 ") and "Signal SIGKILL" in line for line in lines)
    assert any("the first cause of attempt 0, round 2;" in line for line in lines)


def test_revisions_are_told_from_the_second_on() -> None:
    failure = {**RESTARTING["failure"], "attempt": 0, "round": 2, "revision": 2}
    program = {"revision": 3, "hash": "0" * 16}
    found = described({**RESTARTING, "failure": failure, "program": program})
    title, *lines = text(found, NOW)
    assert title.endswith("  revision 3") and (found["revision"], found["cause"]["revision"]) == (
        3,
        2,
    )
    assert any("the first cause of attempt 0, round 2, revision 2;" in line for line in lines)


def test_no_name_of_a_node_can_become_a_command() -> None:
    evil = "x; rm -rf ~"
    history = [{**RESTARTING["history"][1], "node": evil}] * 3
    assert described({**RESTARTING, "history": history})["hints"] == []


def section(state: str, **status: Any) -> str | None:
    """The section to which the description of a job in this state links."""
    link: str | None = described({"state": state, **status})["docs"]
    return link.partition("reasons.md#")[2] if link else None


def waits(reason: str) -> dict[str, Any]:
    return {"summary": {"reason": f"{reason}: words"}}


def test_the_section_is_that_of_what_a_job_waits_for() -> None:
    assert section("Starting", **waits("Pulling")) == "pulling"
    failure = {"attempt": 0, "reason": "Exception", "message": "boom"}
    assert section("Restarting", failure=failure, **waits("CreateRefused")) == "createrefused"


def test_a_job_that_waits_since_its_failure_says_for_what() -> None:
    no_room = {"reason": "Unschedulable: 0/9 nodes are available"}
    lines = list(text(described({**RESTARTING, "summary": no_room, "conditions": []}), NOW))
    assert "why now   Unschedulable: 0/9 nodes are available" in lines
    assert any(
        line.startswith("before    rank 13 (node 1, llama-2-1 on gpu-17) ") for line in lines
    )
    over = condition("Failed", "True", "DeadlineExceeded", "activeDeadlineSeconds is 60")
    summary = {"reason": "DeadlineExceeded: activeDeadlineSeconds is 60"}
    failed = {**RESTARTING, "state": "Failed", "conditions": [over], "summary": summary}
    lines = list(text(described(failed), NOW))
    assert "why now   DeadlineExceeded: activeDeadlineSeconds is 60" in lines
    assert any(line.startswith("before    rank 13 ") for line in lines)
    assert section("Restarting", failure=RESTARTING["failure"]) == "exception", "pods are created"


def test_the_section_of_a_failed_job_is_that_of_its_failure() -> None:
    status = {"failure": {"attempt": 0, "reason": "CodeInvalid"}}
    more = [
        condition("Failed", "True", "MaxRestartsExceeded"),
        condition("Stalled", "Unknown", "N"),
    ]
    assert section("Failed", conditions=more, **status) == "codeinvalid"
    assert section("Restarting", **waits("CodeInvalid"), **status) == "codeinvalid"
    # The failure of an attempt before is not why the job has failed.
    assert section("Failed", **waits("DeadlineExceeded"), **status) == "deadlineexceeded"
    assert section("Failed", failure={"attempt": 0, "reason": "x y"}) is None


def test_a_job_that_is_well_has_no_section() -> None:
    for state in ("Starting", "Suspended", "Succeeded"):
        assert section(state) is None
    for value, name, found in (("Unknown", "NoStep", "nostep"), ("False", "Progress", None)):
        conditions = [condition("Running", "True", "R"), condition("Stalled", value, name)]
        assert section("Running", conditions=conditions) == found
        assert section("Succeeded", conditions=conditions) is None


def test_what_the_client_knows_by_heart_is_what_the_models_say() -> None:
    assert api.FailurePolicy().max_restarts == DEFAULT_RESTARTS
    assert why.FINISHED == api.FINISHED
