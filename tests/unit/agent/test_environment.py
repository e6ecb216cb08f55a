"""What the agent makes of its environment for the launcher."""

from pathlib import Path

import pytest

from ddpjob_agent.environment import absolute_name, launcher_env
from tests.unit.agent.samples import config

RESOLV = "nameserver 10.96.0.10\nsearch ml.svc.cluster.local svc.cluster.local example.com\n"


@pytest.mark.parametrize(
    ("host", "absolute"),
    [
        ("digits-0-0.digits", "digits-0-0.digits.ml.svc.cluster.local."),
        ("digits-0-0.digits.ml.svc.cluster.local", "digits-0-0.digits.ml.svc.cluster.local."),
        ("already.absolute.", "already.absolute."),
        ("10.0.0.7", "10.0.0.7"),
        ("fd00::7", "fd00::7"),
        ("localhost", "localhost"),
    ],
)
def test_the_master_is_asked_for_by_its_absolute_name(host: str, absolute: str) -> None:
    assert absolute_name(host, "ml", RESOLV) == absolute


def test_the_namespaces_search_domain_wins_over_one_that_was_put_before_it() -> None:
    resolv = "search example.com ml.svc.cluster.local\n"
    assert absolute_name("a.b", "ml", resolv) == "a.b.ml.svc.cluster.local."
    assert absolute_name("a.b", "other", resolv) == "a.b.example.com."
    assert absolute_name("a.b", "ml", "nameserver 10.0.0.1\n") == "a.b"


@pytest.mark.parametrize(
    ("grace", "shutdown"), [("60", "50"), ("20", "10"), ("8", "4"), ("0", "1")]
)
def test_torchrun_stops_its_workers_before_the_pod_is_killed(
    tmp_path: Path, grace: str, shutdown: str
) -> None:
    made = launcher_env(config(tmp_path, DDPJOB_GRACE_SECONDS=grace), {}, "")
    assert made["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == shutdown
