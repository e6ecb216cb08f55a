"""What the ranks of a job run, and what of it pods can get while they run."""

import json
from typing import Any

import pytest

from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from ddpjob.pods.program import print_of
from tests.builders import job, made_pod, trainer

CODE = {"configMaps": ["code-1"], "sha256": "1" * 64}
SECRET = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
HOST = {"template": {"spec": {"hostNetwork": True}}}
BASE: dict[str, Any] = {
    "args": ["train.py"],
    "env": [{"name": "LR", "value": "0.1"}, SECRET],
    "code": CODE,
}


def rendered(**spec: Any) -> render.PodTemplate:
    policy = Policy(host_network=True)
    return render.pods(job(**{**BASE, **spec}), render.Agent(b"agent"), policy)


@pytest.mark.parametrize(
    "spec",
    [
        {"args": ["train.py", "--lr", "0.2"]},
        {"env": [{"name": "LR", "value": "0.2"}, SECRET]},
        {"code": {**CODE, "sha256": "2" * 64}},
        {"code": {"configMaps": ["code-1", "code-2"], "sha256": "2" * 64}},
    ],
)
def test_what_a_pod_can_get_while_it_runs_is_no_part_of_its_hash(spec: dict[str, Any]) -> None:
    before, after = rendered(), rendered(**spec)
    assert after.spec_hash == before.spec_hash
    assert print_of(after.program) != print_of(before.program)


@pytest.mark.parametrize(
    "spec",
    [
        {"image": "trainer:2"},
        {"env": [{"name": "LR", "value": "0.1"}]},
        {"env": [*BASE["env"], {"name": "MORE", "value": "1"}]},
        {"code": None},
        {"code": {**CODE, "mountPath": "/app"}},
        {"code": {"volume": {"emptyDir": {}}, "path": "x", "sha256": "1" * 64}},
        {"launcher": "python"},
    ],
)
def test_all_else_is(spec: dict[str, Any]) -> None:
    assert rendered(**spec).spec_hash != rendered().spec_hash


def test_a_variable_that_agents_complete_is_no_part_of_what_changes() -> None:
    env = ([{"name": "no_proxy", "value": value}] for value in "ab")
    before, after = (rendered(env=each) for each in env)
    assert before.spec_hash != after.spec_hash and before.program == after.program


def test_a_rank_0_of_its_own_kind_gets_nothing_else() -> None:
    master = {"image": "trainer:2"}
    assert rendered(master=master).spec_hash != rendered(master=master, args=["x.py"]).spec_hash


@pytest.mark.parametrize(
    "spec",
    [
        {"networkPolicy": {"enabled": False}},
        {"failurePolicy": {"restartStrategy": "Recreate"}},
        HOST,
    ],
)
def test_pods_whose_agents_anybody_may_reach_get_nothing_else(spec: dict[str, Any]) -> None:
    before, after = rendered(**spec), rendered(**spec, args=["x.py"])
    assert before.spec_hash != after.spec_hash
    assert "DDPJOB_PROGRAM" not in before.body(0).decode()
    assert '"DDPJOB_PROGRAM","value":"first"' in rendered().body(0).decode()


def test_it_has_what_a_pod_is_made_with() -> None:
    template = {
        "spec": {"containers": [{"name": "trainer", "env": [{"name": "LR", "value": "0.3"}]}]}
    }
    ours = job(**{**BASE, "template": template})
    line = render.pods(ours, render.Agent(b"agent"), Policy()).program
    assert json.loads(line) == {
        "args": trainer(made_pod(ours))["args"],
        "env": {"LR": "0.3"},
        "code": "1" * 64,
        "path": "",
    }
    assert print_of(line) == "da79c35839f37d3f", (
        "with another hash an upgrade restarts the ranks of all jobs"
    )
    volume = {"volume": {"emptyDir": {}}, "path": "a/b.tar.gz", "sha256": "1" * 64}
    assert json.loads(rendered(code=volume).program)["path"] == "/ddpjob/code/a/b.tar.gz"
