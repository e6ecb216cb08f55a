"""Accounts of a test's namespace, with rights that a test chooses."""

from collections.abc import Sequence
from typing import Any

from tests.cluster.apiserver import ApiServer
from tests.waiting import wait_for

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
# An API group, a resource, and verbs.
Rule = tuple[str, str, Sequence[str]]


def account(
    server: ApiServer, namespace: str, name: str, *rules: Rule, cluster_roles: Sequence[str] = ()
) -> str:
    """Return the token of an account that has these rights in its namespace, and no others.

    It comes back when they hold: the authorizer hears of a binding some time after it was made, a
    long time on a busy machine.
    """
    token = server.service_account_token(namespace, name)
    if rules:
        body = {"metadata": {"name": name}, "rules": [_rule(*rule) for rule in rules]}
        server.request("POST", f"{RBAC}/namespaces/{namespace}/roles", body)
        _bind(server, namespace, name, "Role", name)
    for role in cluster_roles:
        _bind(server, namespace, name, "ClusterRole", role)
        (first, *_) = server.request("GET", f"{RBAC}/clusterroles/{role}")["rules"]
        parts = (first["apiGroups"][0], first["resources"][0], first["verbs"])
        rules = (*rules, parts)
    wait_for(
        lambda: all(_holds(server, token, namespace, rule) for rule in rules),
        lambda: f"rights of {name}",
    )
    return token


def _rule(group: str, resource: str, verbs: Sequence[str]) -> dict[str, list[str]]:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


def _bind(server: ApiServer, namespace: str, name: str, kind: str, role: str) -> None:
    body = {
        "metadata": {"name": f"{name}-{role}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    server.request("POST", f"{RBAC}/namespaces/{namespace}/rolebindings", body)


def _holds(server: ApiServer, token: str, namespace: str, rule: Rule) -> bool:
    group, resource, verbs = rule
    resource, _, sub = resource.partition("/")
    asked: dict[str, Any] = {"namespace": namespace, "group": group, "verb": verbs[0]}
    asked |= {"resource": resource, "subresource": sub}
    answer = server.request("POST", REVIEWS, {"spec": {"resourceAttributes": asked}}, token=token)
    return bool(answer["status"]["allowed"])
