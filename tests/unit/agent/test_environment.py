"""What the agent makes of its environment for the launcher."""

from pathlib import Path

import pytest

from ddpjob_agent.environment import HOOKS, absolute_name, launcher_env, prepare_folders
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


def test_a_machine_without_search_domains_keeps_the_name() -> None:
    assert absolute_name("a.b", "ml", "nameserver 10.0.0.1\n") == "a.b"


def test_the_launcher_gets_our_hooks_before_the_users_path(tmp_path: Path) -> None:
    made = launcher_env(config(tmp_path), {"PYTHONPATH": "/theirs"}, "")
    assert made["PYTHONPATH"] == HOOKS + ":/theirs"


@pytest.mark.parametrize(
    ("grace", "shutdown"), [("60", "50"), ("20", "10"), ("8", "4"), ("0", "1")]
)
def test_torchrun_stops_its_workers_before_the_pod_is_killed(
    tmp_path: Path, grace: str, shutdown: str
) -> None:
    made = launcher_env(config(tmp_path, DDPJOB_GRACE_SECONDS=grace), {}, "")
    assert made["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == shutdown


def test_both_rendezvous_limits_are_one_number(tmp_path: Path) -> None:
    made = launcher_env(config(tmp_path, DDPJOB_RENDEZVOUS_SECONDS="30"), {}, "")
    assert made["PET_RDZV_CONF"] == "timeout=30"


def test_folders_with_names_like_ours_keep_no_file_of_an_earlier_run(tmp_path: Path) -> None:
    """Whatever the order in which the system lists them."""
    kinds = ["progress", "launch", "result", "error-7", "steps-7"]
    for kind in kinds[:3]:
        (tmp_path / f"{kind}.json").touch()
    for kind in kinds:
        (tmp_path / f"{kind}-json").mkdir()
    for kind in kinds[3:]:
        (tmp_path / f"{kind}.json").touch()
    prepare_folders(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{k}-json" for k in kinds)
