"""Whatever happens to a job, its decisions come to an end: then there is nothing left to do.

A small model takes the place of cluster and reconciler: it stores a status first and does the rest
only if that is no news, as `Reconciler.reconcile` does, while the clock stands still.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ddpjob import api, names
from ddpjob.api import DDPJob, Status
from ddpjob.controller.events import is_transition
from ddpjob.errors import DDPJobError, Refused
from ddpjob.plan.model import Decision, Observed, PodRecord, Report
from ddpjob.plan.own import print_of
from ddpjob.times import timestamp
from tests.builders import NOW, decide, job, summary

ROUNDS = 8  # more in one go, and Reconciler takes it that something flaps
NODES = 3


@dataclass
class World:
    """One job, its pods, and what the operator remembers of it."""

    job: DDPJob
    now: float = NOW
    pods: dict[str, PodRecord] = field(default_factory=dict)
    spec_hash: str = "hash"
    prepared: tuple[int, int, int] | None = None
    create_error: DDPJobError | None = None
    secondary_since: float | None = None
    report: Report | None = None
    exists: bool = True
    made: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        status = self.job.status
        return self.job.metadata.generation, status.attempt, status.own_pods.latest

    def decide(self) -> Decision:
        """What is to be done."""
        ready = self.prepared == self.place
        observed = Observed(
            pods=tuple(self.pods.values()),
            children_ready=ready,
            create_error=self.create_error,
            secondary_seconds=0.0
            if self.secondary_since is None
            else self.now - self.secondary_since,
            report=self.report,
            spec_hash=self.spec_hash if ready else "",
        )
        return decide(self.job, observed, self.now)

    def write(self) -> bool:
        """One write of the decision, or all that it makes at once; False if there is none."""
        if not self.exists:
            return False
        step = self.decide()
        if step.only_secondary and self.secondary_since is None:
            self.secondary_since = self.now
        if is_transition(self.job.status, step.status):
            self.store(step.status)
        elif step.delete_job:
            self.exists = False
        elif step.delete or step.expire or step.prepare or step.create:
            self.act(step)
        elif step.status != self.job.status:
            self.store(step.status)
        else:
            assert not step.events
            return False
        return True

    def settle(self) -> None:
        """All that there is to do, which must come to an end."""
        attempt, restarts = self.job.status.attempt, self.job.status.restarts
        rounds = 0
        while self.write():
            rounds += 1
            assert rounds <= ROUNDS, f"still writes after {ROUNDS} rounds: {self.decide()}"
        assert not self.write()
        assert self.job.status.attempt <= attempt + 1
        assert self.job.status.restarts <= restarts + 1

    def store(self, status: Status) -> None:
        """The API server takes it, and hands it out again."""
        stored = Status.model_validate(status.to_json())
        assert stored == status
        if status.attempt != self.job.status.attempt:
            self.secondary_since, self.report = None, None
        self.job = self.job.model_copy(update={"status": stored})

    def act(self, step: Decision) -> None:
        for doomed in step.delete:
            pod = doomed.pod
            assert self.pods[pod.name].uid == pod.uid
            if pod.ended or not pod.node or doomed.grace_seconds == 0:
                del self.pods[pod.name]
            else:
                self.change(pod, deleting=True)
        for pod in step.expire:
            self.change(pod, deadline_seconds=1)
        if step.prepare:
            self.prepared = self.place
        for rank in step.create:
            self.create(rank)
        if step.prepare or step.create:
            self.create_error = None

    def create(self, rank: int) -> None:
        attempt, since = self.job.status.attempt, self.job.status.own_pods.latest
        name = names.pod_name(self.job.name, attempt, rank, since)
        assert name not in self.pods
        self.made += 1
        self.pods[name] = PodRecord(
            name=name,
            namespace=self.job.namespace,
            uid=f"uid-{self.made}",
            uid_print=print_of(f"uid-{self.made}"),
            resource_version=self.made,
            job=self.job.name,
            owner_uid=self.job.uid,
            attempt=attempt,
            rank=rank,
            since=since,
            root=self.job.status.own_pods.roots[-1],
            spec_hash=self.spec_hash,
        )

    def change(self, pod: PodRecord, **fields: Any) -> None:
        self.pods[pod.name] = replace(pod, **fields)

    def edit(self, **changes: Any) -> None:
        """The user has changed the spec."""
        meta = self.job.metadata
        meta = meta.model_copy(update={"generation": meta.generation + 1})
        spec = self.job.spec.model_copy(update=changes)
        self.job = self.job.model_copy(update={"spec": spec, "metadata": meta})


# How a trainer ends, or why it does not start.
ENDS: tuple[dict[str, Any], ...] = (
    {"result": "succeeded", "exit_code": 0},
    {"result": "succeeded", "exit_code": 0, "ended": False},  # a sidecar runs on
    {"result": "succeeded", "message": summary(reason="Completed", progress={"step": 9})},
    {"result": "failed", "exit_code": 1, "message": "ValueError: boom\n"},
    {"result": "failed", "exit_code": 1, "ended": False},
    {"result": "failed", "exit_code": 137, "reason": "OOMKilled"},
    {"result": "failed", "exit_code": 1, "message": summary(rank=2, time=NOW)},
    {"result": "failed", "exit_code": 1, "message": summary(peer=True)},
    {"result": "failed", "exit_code": 3, "message": summary(exit_code=3)},
    {"result": "failed", "exit_code": 42, "message": summary(exit_code=42, signal="SIGSEGV")},
    {"result": "failed", "exit_code": 75, "message": summary(reason="Preempted", exit_code=75)},
    {"result": "failed", "message": "{garbage", "exit_code": 255},
    {"result": "failed", "reason": "Evicted", "disruption": "Evicted", "message": "low on memory"},
    {"result": "failed", "reason": "OutOfcpu", "disruption": "NodeRefused"},
    {"result": "failed", "reason": "DeadlineExceeded", "exit_code": 143},
    {"result": "failed", "reason": "InitContainerFailed", "exit_code": 1, "message": "init: no"},
    {"reason": "ErrImagePull", "message": "not found", "node": "node-1"},
    {"reason": "Unschedulable", "message": "0/3 nodes are available"},
)
SPECS: tuple[dict[str, Any], ...] = (
    {},
    {"suspend": True},
    {"successPolicy": "Rank0"},
    {"failurePolicy": {"maxRestarts": 0}},
    {"failurePolicy": {"maxRestarts": 2, "backoffSeconds": {"first": 0, "cap": 0}}},
    {
        "failurePolicy": {
            "rules": [
                {"onExitCodes": [3], "action": "Ignore"},
                {"onExitCodes": [42], "action": "Restart", "avoidNode": True},
                {"onReasons": ["OOMKilled"], "action": "FailJob"},
                {"onMessagePattern": "boom", "action": "Restart", "countsTowardsMax": False},
            ]
        }
    },
    {"startupDeadlineSeconds": 10},
    {"activeDeadlineSeconds": 300, "cleanPodPolicy": "None"},
    {"activeDeadlineSeconds": 60, "startupDeadlineSeconds": 30, "cleanPodPolicy": "All"},
    {"ttlSecondsAfterFinished": 30, "cleanPodPolicy": "All"},
    {"launcher": "none", "args": []},
    {"managedBy": "kueue.x-k8s.io/multikueue"},
)
Event = Callable[[World, PodRecord | None, int], None]


def runs(world: World, pod: PodRecord | None, _: int) -> None:
    if pod and pod.live:
        since = {"started_at": timestamp(world.now), "node": "node-1", "ip": "10.0.0.1"}
        world.change(pod, running=True, reason="", message="", **since)


def ends(world: World, pod: PodRecord | None, choice: int) -> None:
    if pod and pod.live:
        fields = {"running": False, "ended": True, **ENDS[choice % len(ENDS)]}
        over = fields.get("result") is not None
        fields |= {"finished_at": timestamp(world.now)} if over else {"ended": False}
        world.change(pod, **fields)


def is_deleted(world: World, pod: PodRecord | None, choice: int) -> None:
    """By somebody, by a drain, or with its node."""
    reason = ("", "Evicted", "Preempted", "NodeLost")[choice % 4]
    if pod:
        lost = timestamp(world.now) if reason == "NodeLost" else None
        world.change(pod, deleting=True, disruption=reason, unreachable_since=lost)


def goes(world: World, pod: PodRecord | None, _: int) -> None:
    """The kubelet obeys, or an administrator forces it; nobody has seen how it ended."""
    if pod:
        del world.pods[pod.name]


def kubelets_obey(world: World, _: PodRecord | None, choice: int) -> None:
    for pod in [pod for pod in world.pods.values() if pod.deleting]:
        del world.pods[pod.name]


def all_run(world: World, _: PodRecord | None, choice: int) -> None:
    for pod in list(world.pods.values()):
        runs(world, pod, choice)


def time_passes(world: World, _: PodRecord | None, choice: int) -> None:
    world.now += (1, 5, 11, 29, 61, 400, 4000)[choice % 7]


def is_suspended_or_resumed(world: World, _: PodRecord | None, __: int) -> None:
    world.edit(suspend=not world.job.spec.suspend)


def is_edited(world: World, _: PodRecord | None, choice: int) -> None:
    """As far as the API server lets it: what shapes the pods only while there should be none."""
    policy = api.FailurePolicy(max_restarts=choice % 3)
    if choice % 2 or world.job.status.state not in (None, "Pending", "Suspended"):
        world.edit(failure_policy=policy)
    else:
        world.spec_hash += "+"
        world.edit(nnodes=1 + choice % NODES)


def is_reported(world: World, _: PodRecord | None, choice: int) -> None:
    source: Any = "file" if choice % 3 else "counted"
    world.report = Report(attempt=world.job.status.attempt, step=choice, source=source)


def operator_starts_again(world: World, _: PodRecord | None, choice: int) -> None:
    """And has forgotten; a newer one may render pods otherwise."""
    world.prepared = world.create_error = world.secondary_since = world.report = None
    world.spec_hash += "*" if choice % 5 == 0 else ""


def is_refused(world: World, _: PodRecord | None, __: int) -> None:
    world.create_error, world.prepared = Refused(403, "Forbidden", "exceeded quota"), None


EVENTS: tuple[Event, ...] = (
    *(runs, all_run, all_run, ends, ends, ends, is_deleted, goes, kubelets_obey, time_passes),
    *(is_suspended_or_resumed, is_edited, is_reported, operator_starts_again, is_refused),
)
happenings = st.lists(
    st.tuples(
        st.sampled_from(EVENTS),
        st.integers(0, 9),  # which pod
        st.integers(0, 250),
        st.sampled_from((0, 1, 2, ROUNDS)),  # how many writes follow before the next
    ),
    max_size=24,
)


@settings(max_examples=500)
@given(st.sampled_from(SPECS), happenings)
def test_a_jobs_writes_come_to_an_end_and_then_there_are_none(
    spec: dict[str, Any], story: list[tuple[Event, int, int, int]]
) -> None:
    world = World(job(**{"nnodes": NODES, **spec}))
    for event, place, choice, writes in story:
        pods = sorted(world.pods.values(), key=lambda pod: pod.name)
        event(world, pods[place % len(pods)] if pods else None, choice)
        if writes == ROUNDS:
            world.settle()
        for _ in range(writes):
            world.write()
    world.settle()
