"""Who may do what: the operator's rights to the letter, and those that users are given."""

import json

import pytest

from ddpjob.json_depth import Body
from ddpjob.pods.allowlist import parse_policy
from tests.chart.rendering import Helm, of_kind, only

OPERATOR = {
    ("ddpjob.dev", "ddpjobs"): {"get", "list", "watch", "delete"},
    ("ddpjob.dev", "ddpjobs/status"): {"update"},
    ("ddpjob.dev", "ddpjobs/finalizers"): {"update"},
    ("", "pods"): {"get", "list", "watch", "create", "delete", "patch"},
    ("", "services"): {"get", "create"},
    ("networking.k8s.io", "networkpolicies"): {"get", "create", "delete"},
    ("", "configmaps"): {"get", "create", "delete"},
    ("", "events"): {"create"},
}
GROUPS = {
    "kubernetes": "scheduling.k8s.io",
    "volcano": "scheduling.volcano.sh",
    "coscheduling": "scheduling.x-k8s.io",
}
KUEUE = {
    ("kueue.x-k8s.io", "workloads"): {"get", "list", "watch", "create", "delete"},
    ("kueue.x-k8s.io", "workloads/status"): {"update"},
}
KUEUE_ON = "--set=kueue.enabled=true"
ONE = "--set=replicas=1"
NAMESPACED = "--set=watchNamespaces={team-a,team-b}"


def granted(role: Body) -> dict[tuple[str, str], set[str]]:
    """Verbs for each (group, resource) of a role."""
    verbs: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                verbs.setdefault((group, resource), set()).update(rule["verbs"])
    return verbs


def operator_role(objects: list[Body]) -> Body:
    (role,) = (
        r for r in of_kind(objects, "ClusterRole") if r["metadata"]["name"] == "ddpjob-operator"
    )
    return role


def test_the_operator_gets_this_and_no_more(helm: Helm) -> None:
    assert granted(operator_role(helm.objects())) == OPERATOR


@pytest.mark.parametrize("scheduler", GROUPS)
def test_gangs_get_the_groups_of_their_scheduler_alone(helm: Helm, scheduler: str) -> None:
    objects = helm.objects(f"--set=gang.scheduler={scheduler}")
    groups = {(GROUPS[scheduler], "podgroups"): {"get", "create", "delete"}}
    assert granted(operator_role(objects)) == OPERATOR | groups
    allowed = json.loads(only(objects, "ConfigMap")["data"]["policy.json"])
    assert allowed["gang"] == {"scheduler": scheduler, "schedulerName": ""}
    assert parse_policy(json.dumps(allowed).encode()).gang.scheduler == scheduler


def test_kueue_gets_workloads_and_reads_what_is_the_clusters(helm: Helm) -> None:
    for scope in ((), (NAMESPACED,)):
        objects = helm.objects(KUEUE_ON, ONE, *scope)
        roles = {role["metadata"]["name"]: role for role in of_kind(objects, "ClusterRole")}
        assert granted(roles["ddpjob-operator-queues"]) == {
            ("kueue.x-k8s.io", "resourceflavors"): {"get"},
            ("kueue.x-k8s.io", "workloadpriorityclasses"): {"get"},
            ("scheduling.k8s.io", "priorityclasses"): {"get"},
        }
        own = of_kind(objects, "Role") if scope else [operator_role(objects)]
        assert all(granted(role) == OPERATOR | KUEUE for role in own)
        pod = only(objects, "Deployment")["spec"]["template"]["spec"]
        assert "--kueue" in pod["containers"][0]["args"]


def test_without_the_values_nobody_hears_of_gangs_and_queues(helm: Helm) -> None:
    text = helm.template()
    assert not any(word in text for word in ("podgroups", "kueue.x-k8s.io/v", "--kueue", '"gang"'))


def test_each_watched_namespace_gets_the_same_rights(helm: Helm) -> None:
    roles = list(of_kind(helm.objects(NAMESPACED, ONE), "Role"))
    assert [role["metadata"]["namespace"] for role in roles] == ["team-a", "team-b"]
    assert [granted(role) for role in roles] == [OPERATOR, OPERATOR]


def test_two_replicas_get_one_lease_and_no_more(helm: Helm) -> None:
    objects = helm.objects(namespace="ops")
    assert granted(operator_role(objects)) == OPERATOR
    role, binding = only(objects, "Role"), only(objects, "RoleBinding")
    group = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    named = {"resourceNames": [only(objects, "Lease")["metadata"]["name"]]}
    assert role["rules"] == [
        {**group, **named, "verbs": ["get", "update"]},
        {**group, "verbs": ["create"]},
    ]
    account = only(objects, "ServiceAccount")["metadata"]
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "ops"
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": "ops"}
    ]


def test_a_namespaced_operator_has_no_cluster_role(helm: Helm) -> None:
    objects = helm.objects(NAMESPACED)
    assert not list(of_kind(objects, "ClusterRoleBinding"))
    assert {r["metadata"]["name"] for r in of_kind(objects, "ClusterRole")} == {
        "ddpjob-edit",
        "ddpjob-view",
    }


def test_no_role_reaches_secrets_or_into_pods_or_everything(helm: Helm) -> None:
    for role in of_kind([*helm.objects(), *helm.objects(NAMESPACED)], "ClusterRole"):
        resources = {resource for _, resource in granted(role)}
        verbs = set().union(*granted(role).values())
        assert not resources & {"secrets", "pods/exec", "pods/attach", "pods/log", "nodes", "*"}
        assert not verbs & {"*", "escalate", "bind", "impersonate"}


def test_bindings_tie_the_operators_account_to_its_role(helm: Helm) -> None:
    account = {"kind": "ServiceAccount", "name": "ddpjob-operator", "namespace": "ops"}
    cluster = only(helm.objects(namespace="ops"), "ClusterRoleBinding")
    spaces = list(of_kind(helm.objects(NAMESPACED, ONE, namespace="ops"), "RoleBinding"))
    assert [b["metadata"].get("namespace") for b in [cluster, *spaces]] == [
        None,
        "team-a",
        "team-b",
    ]
    for binding, kind in zip([cluster, *spaces], ["ClusterRole", "Role", "Role"], strict=True):
        assert binding["subjects"] == [account]
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (kind, "ddpjob-operator")


def test_the_operators_pod_runs_as_that_account(helm: Helm) -> None:
    objects = helm.objects()
    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == only(objects, "ServiceAccount")["metadata"]["name"]
    assert pod["automountServiceAccountToken"] is True


def test_users_get_jobs_through_the_built_in_roles(helm: Helm) -> None:
    roles = {r["metadata"]["name"]: r for r in of_kind(helm.objects(), "ClusterRole")}
    edit, view = roles["ddpjob-edit"], roles["ddpjob-view"]
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    assert edit["metadata"]["labels"][f"{aggregate}edit"] == "true"
    assert f"{aggregate}view" not in edit["metadata"]["labels"]
    assert view["metadata"]["labels"][f"{aggregate}view"] == "true"
    assert set(granted(edit)) == {("ddpjob.dev", "ddpjobs")}, "status belongs to the operator"
    assert set().union(*granted(view).values()) == {"get", "list", "watch"}
