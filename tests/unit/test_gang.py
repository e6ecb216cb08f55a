"""All pods of an attempt are placed by a scheduler together: its PodGroup, and what names it."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob.cluster import PODS, Resource
from ddpjob.errors import InvalidJob, Refused, cluster_error
from ddpjob.json_depth import Body
from ddpjob.pods import render
from ddpjob.pods.allowlist import Gang, Policy
from tests.builders import NOW, decide, job, made_pod, pod, see, write
from tests.localplay import (
    FAST,
    NAMESPACE,
    OperatorView,
    Watched,
    has_restarted,
    in_state,
    operating,
    submit,
    until,
)

GROUP = {"minMember": 2}
NATIVE = {"schedulingPolicy": {"gang": {"minCount": 2}}}
LABEL, ANNOTATION = "scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name"


SIZE: Body = {"resources": {"limits": {"cpu": 1}}}


def policy(scheduler: Any, name: str = "") -> Policy:
    """The installation's, with this scheduler of gangs."""
    return Policy(gang=Gang(scheduler=scheduler, scheduler_name=name))


def agent_pods(ours: Any, scheduler: Any) -> render.PodTemplate:
    """The pods of a job where this scheduler places gangs."""
    return render.pods(ours, render.Agent(b"agent"), policy(scheduler))


@pytest.mark.parametrize(
    ("scheduler", "name", "version", "spec"),
    [
        ("kubernetes", "default-scheduler", "scheduling.k8s.io/v1beta1", NATIVE),
        ("volcano", "volcano", "scheduling.volcano.sh/v1beta1", GROUP),
        ("coscheduling", "scheduler-plugins-scheduler", "scheduling.x-k8s.io/v1alpha1", GROUP),
    ],
)
def test_each_attempt_has_a_group_of_its_own_which_its_pods_name(
    scheduler: str, name: str, version: str, spec: Body
) -> None:
    ours = job(status={"attempt": 3}, **SIZE)
    gang = agent_pods(ours, scheduler).gang
    assert gang is not None and gang.versions[0] == version
    assert gang.body["metadata"]["name"] == "digits-3" and gang.body["spec"] == spec
    assert gang.body["metadata"]["ownerReferences"][0]["uid"] == ours.uid
    found = made_pod(ours, 1, policy(scheduler))
    assert found["spec"]["schedulerName"] == name
    named = (
        (found["spec"].get("schedulingGroup") or {}).get("podGroupName"),
        found["metadata"]["annotations"].get(ANNOTATION),
        found["metadata"]["labels"].get(LABEL),
    )
    wanted = {"kubernetes": 0, "volcano": 1, "coscheduling": 2}[scheduler]
    assert named == tuple("digits-3" if place == wanted else None for place in range(3))


@pytest.mark.parametrize("spec", [{"nnodes": 1}, {"scheduling": {"gang": "None"}}])
def test_one_node_or_a_job_that_wants_none_has_no_group(spec: dict[str, Any]) -> None:
    ours = job(**spec)
    assert agent_pods(ours, "volcano").gang is None
    assert made_pod(ours, 0, policy("volcano")) == made_pod(ours)


def test_queue_and_priority_are_those_of_the_job_and_the_name_is_the_installations() -> None:
    high = {"spec": {"priorityClassName": "high"}}
    ours = job(scheduling={"queue": "research"}, template=high, **SIZE)
    gang = agent_pods(ours, "volcano").gang
    assert gang is not None
    assert (gang.body["spec"]["queue"], gang.body["spec"]["priorityClassName"]) == (
        "research",
        "high",
    )
    assert made_pod(ours, 0, policy("volcano", "own"))["spec"]["schedulerName"] == "own"


@pytest.mark.parametrize(
    ("scheduler", "spec", "field"),
    [
        ("kubernetes", {"spec": {"schedulerName": "other"}}, "template.spec.schedulerName"),
        (
            "kubernetes",
            {"spec": {"schedulingGroup": {"podGroupName": "x"}}},
            "template.spec.schedulingGroup",
        ),
        ("volcano", {"metadata": {"annotations": {ANNOTATION: "x"}}}, ANNOTATION),
        ("coscheduling", {"metadata": {"labels": {LABEL: "x"}}}, LABEL),
    ],
)
def test_an_overlay_cannot_take_a_pod_out_of_its_gang(
    scheduler: str, spec: Body, field: str
) -> None:
    with pytest.raises(InvalidJob) as found:
        agent_pods(job(template=spec, **SIZE), scheduler)
    assert field in found.value.path and "is set by ddpjob" in found.value.rule
    made_pod(job(template=spec))  # without gangs it is the user's business


def test_the_pods_of_a_gang_have_one_priority_and_other_schedulers_no_queue() -> None:
    high = {"template": {"spec": {"priorityClassName": "high"}}}
    with pytest.raises(InvalidJob, match="master.template.spec.priorityClassName"):
        agent_pods(job(master=high, **SIZE), "volcano")
    agent_pods(job(master=high), "none")
    with pytest.raises(InvalidJob, match="scheduling.queue: is of Volcano"):
        agent_pods(job(scheduling={"queue": "research"}), "kubernetes")


def test_pods_that_volcano_would_place_one_by_one_are_refused() -> None:
    with pytest.raises(InvalidJob, match=r"spec.resources: must have requests or limits"):
        agent_pods(job(), "volcano")
    agent_pods(job(), "coscheduling")


class Cluster(Watched):
    """Has PodGroups of one version, or none."""

    def __init__(self, version: str = "v1alpha3", code: int = 404) -> None:
        super().__init__()
        self.version, self.code = version, code

    def operator(self) -> OperatorView:
        outer = self

        class View(OperatorView):
            async def create(self, resource: Resource, namespace: str, body: Any) -> Body:
                if resource.kind == "PodGroup" and resource.version != outer.version:
                    raise cluster_error(outer.code, "NotFound", "no such thing")
                return await super().create(resource, namespace, body)

        return View(self)

    async def groups(self) -> list[str]:
        """Names of the PodGroups there are."""
        resource = Resource("scheduling.k8s.io", self.version, "podgroups", "PodGroup")
        found = await self.list(resource, namespace=NAMESPACE)
        return [each["metadata"]["name"] for each in found.items]


NATIVELY = replace(FAST, policy=policy("kubernetes"))


async def test_a_group_is_there_before_its_pods_and_goes_with_its_attempt() -> None:
    cluster = Cluster()

    def fails_once(attempt: int, rank: int) -> int | None:
        return 1 if attempt == 0 and rank == 1 else None

    async with operating(cluster, fails_once, NATIVELY):
        await submit(cluster, failurePolicy={"restartStrategy": "Recreate"})
        await until(lambda: has_restarted(cluster))
        await in_state(cluster, "Running")
        assert await cluster.groups() == ["digits-1"]
        order = [name for verb, _, name in cluster.writes if verb in ("create", "delete")]
        assert order.index("digits-0") < order.index("digits-0-0")
        assert order.index("digits-1") < order.index("digits-1-0")


@pytest.mark.parametrize("code", [404, 403])
async def test_without_groups_there_are_no_pods_and_the_reason_names_the_value(code: int) -> None:
    cluster = Cluster("none", code)
    async with operating(cluster, lambda attempt, rank: None, NATIVELY):
        await submit(cluster)

        async def told() -> str:
            status = (await cluster.get(*JOB)).get("status") or {}
            conditions = {each["type"]: each for each in status.get("conditions", [])}
            return str(conditions.get("Running", {}).get("message", ""))

        words = await until(told)
        assert "gang.scheduler is kubernetes" in words
        assert not (await cluster.list(PODS, namespace=NAMESPACE)).items
        cluster.version = "v1beta1"
        await in_state(cluster, "Running")


JOB = (Resource("ddpjob.dev", "v1alpha1", "ddpjobs", "DDPJob"), NAMESPACE, "digits")


async def test_pods_that_a_scheduler_has_not_placed_as_a_gang_are_told_of() -> None:
    cluster = Cluster()
    async with operating(cluster, lambda attempt, rank: None, NATIVELY):
        await submit(cluster)
        await in_state(cluster, "Running")
        events = Resource("", "v1", "events", "Event")

        async def told() -> bool:
            found = (await cluster.list(events, namespace=NAMESPACE)).items
            return any(event["reason"] == "GangNotEnforced" for event in found)

        await until(told)


def test_a_group_that_has_no_node_yet_has_all_the_time() -> None:
    late = write(write(job(startupDeadlineSeconds=60), now=NOW - 600), now=NOW - 600)
    old: Body = {"reason": "Unschedulable", "created_at": "2027-01-15T07:00:00Z"}
    assert decide(late, see(*(pod(rank, **old) for rank in (0, 1))), NOW).status.attempt == 1
    waits = [pod(rank, gang=True, **old) for rank in (0, 1)]
    assert decide(late, see(*waits), NOW).status.attempt == 0
    refused = Refused(403, "Forbidden", "exceeded quota")
    known = see(waits[0], create_error=refused, refused_seconds=99)
    assert decide(late, known, NOW).status.attempt == 1, "half of it must not wait for ever"
    placed = replace(waits[0], node="node-1", reason="", scheduled_at="2027-01-15T07:58:00Z")
    assert decide(late, see(placed, waits[1]), NOW).status.attempt == 1
    just = replace(placed, scheduled_at="2027-01-15T07:59:50Z")
    assert decide(late, see(just, waits[1]), NOW).status.attempt == 0
