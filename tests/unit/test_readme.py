"""README.md shows what is so: its job, the objects of that job, a figure that was measured."""

import json
import re
from functools import cache

import yaml

from benchmarks.recovery import runs
from ddpjob.api import DDPJob
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from tests.builders import UID
from tests.cluster.tiers import ROOT

README = (ROOT / "README.md").read_text()


@cache
def first_job() -> DDPJob:
    """The job at the top of the page."""
    body = yaml.safe_load(README.split("```yaml\n")[1].split("```")[0])
    body["metadata"] |= {"namespace": "default", "uid": UID}
    return DDPJob.parse(body)


def test_the_first_job_is_the_first_example() -> None:
    example = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
    assert first_job().spec == DDPJob.parse(example).spec


def test_the_tree_has_the_objects_of_the_first_job() -> None:
    job, agent = first_job(), render.Agent(b"")
    pods = render.pods(job, agent, Policy())
    objects = [
        render.service(job, "t" * 32),
        render.config_map(job, agent),
        render.network_policy(job, Policy()) or {},
        *(json.loads(pods.body(rank)) for rank in range(job.spec.nnodes)),
    ]
    made = [f"{body['kind']} {body['metadata']['name']}" for body in objects]
    shown = [f"{kind} {name}" for kind, name in re.findall(r"^[├└]── (\w+) (\S+)", README, re.M)]
    assert [re.sub(r"-agent-[0-9a-f]{12}$", "-agent-…", name) for name in made] == shown


def test_the_seconds_of_a_restart_are_those_that_were_measured() -> None:
    measured = runs.read()
    for name, fault in (
        ("in place", "a rank is killed"),
        ("new pods", "a rank is killed"),
        ("spare", "a pod is deleted"),
        ("silent nodes", "a node is cut off"),
    ):
        row, *_ = runs.rows(measured[name])
        assert row.fault == fault
        assert f"[{row.step.median:.2g} s later](docs/recovery.md)" in README
