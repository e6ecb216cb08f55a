"""What a NetworkPolicy means, for clusters whose network plugin does not enforce any."""

from collections.abc import Mapping
from typing import Any

from tests.cluster.kind import KindCluster

Body = Mapping[str, Any]


def is_enforced(cluster: KindCluster) -> bool:
    """Whether the network is kind's own, which enforces them."""
    return bool(cluster.get("pods", "-n", "kube-system", "-l", "app=kindnet")["items"])


def lets_in(cluster: KindCluster, policy: Body, target: Body, source: Body, port: int) -> bool:
    """Whether `policy` (its ingress rules, as the API describes them) lets the pod `source` reach a
    port of the pod `target`.
    """
    spec = policy["spec"]
    if target["metadata"]["namespace"] != policy["metadata"]["namespace"] or not matches(
        spec["podSelector"], target
    ):
        return True
    return any(
        any(_is(cluster, policy, peer, source) for peer in rule.get("from", ()))
        and (not rule.get("ports") or port in [p["port"] for p in rule["ports"]])
        for rule in spec["ingress"]
    )


def _is(cluster: KindCluster, policy: Body, peer: Body, source: Body) -> bool:
    namespace = source["metadata"]["namespace"]
    if (selector := peer.get("namespaceSelector")) is not None:
        if not matches(selector, cluster.get("namespace", namespace)):
            return False
    elif namespace != policy["metadata"]["namespace"]:
        return False
    return matches(peer.get("podSelector", {}), source)


def matches(selector: Body, found: Body) -> bool:
    """Whether a label selector without expressions, as ours are, selects this object."""
    assert set(selector) <= {"matchLabels"}, selector
    wanted, labels = selector.get("matchLabels", {}), found["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in wanted.items())
