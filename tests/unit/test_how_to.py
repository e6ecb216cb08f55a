"""docs/how-to.md names metrics and labels as they are."""

import re

import yaml

from ddpjob_agent.progress import metrics_text
from tests.builders import job, made_pod, trainer
from tests.cluster.tiers import ROOT

PAGE = (ROOT / "docs" / "how-to.md").read_text()
# Alerts, a PodMonitor, and the settings of kube-state-metrics.
RULES, MONITOR, _ = (
    yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
)


def test_alerts_are_on_metrics_that_exist() -> None:
    source = (ROOT / "operator" / "ddpjob" / "server.py").read_text()
    known = set(re.findall(r'"(ddpjob_\w+)"', source))
    known |= {f"{name}_total" for name in known}
    report = dict.fromkeys(("step", "total_steps", "epoch", "loss", "samples_per_second"), 1)
    of_agent = metrics_text({"attempt": 0, "node_rank": 0, **report}, "llama")
    known |= set(re.findall(r"^(ddpjob_\w+){", of_agent, re.MULTILINE))
    expressions = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
    used = {name for each in expressions for name in re.findall(r"ddpjob_\w+", each)}
    assert used <= known and len(used) == len(expressions)
    assert 'node_rank="0"' in of_agent and 'node_rank="0"' in str(expressions)


def test_pods_have_the_labels_and_the_port_by_which_they_are_found() -> None:
    pod = made_pod(job())
    labels, container = pod["metadata"]["labels"], trainer(pod)
    named = set(re.findall(r"ddpjob\.dev/\w+", PAGE))
    assert len(named) == 3 and named <= set(labels)
    (wanted,) = MONITOR["spec"]["selector"]["matchExpressions"]
    assert wanted["key"] in named
    ports = [port["name"] for port in container["ports"]]
    assert [endpoint["port"] for endpoint in MONITOR["spec"]["podMetricsEndpoints"]] == ports
    assert f"-c {container['name']} " in PAGE
