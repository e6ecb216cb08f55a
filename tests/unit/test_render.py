import json
from typing import Any

import pytest

from ddpjob import names
from ddpjob.errors import InvalidJob
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from tests.builders import UID, job, trainer
from tests.builders import made_pod as pod

AGENT = render.Agent(b"agent")


def env(body: dict[str, Any]) -> dict[str, Any]:
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in trainer(body)["env"]}


def overlay(**spec: Any) -> dict[str, Any]:
    return {"template": {"spec": spec}}


def test_a_warm_start_is_said_only_where_it_is_not_the_plain_one() -> None:
    plain = {name for name in env(pod(job())) if "WARM" in name}
    off = env(pod(job(warmStart={"enabled": False})))
    more = env(pod(job(warmStart={"modules": ["transformers", "torch.fx"]})))
    assert not plain and off["DDPJOB_WARM_START"] == "0"
    assert more["DDPJOB_WARM_MODULES"] == "transformers,torch.fx"


def test_the_attempt_is_in_names_and_rendezvous() -> None:
    later = job(status={"attempt": 3, "state": "Restarting"})
    body = pod(later, rank=1)
    assert body["metadata"]["name"] == "digits-3-1"
    assert env(body)["MASTER_ADDR"] == "digits-3-0.digits"
    assert env(body)["PET_RDZV_ID"].endswith("-3")


@pytest.mark.parametrize(
    ("spec", "command", "args"),
    [
        ({"args": ["-m", "t"]}, ["torchrun", "--"], ["-m", "t"]),
        ({"command": ["a", "b"], "args": ["c"]}, ["command", "--"], ["a", "b", "c"]),
        ({"launcher": "none", "command": ["a"], "args": []}, ["command", "--"], ["a"]),
        ({"launcher": "python", "args": ["t.py"]}, ["python", "--"], ["python3", "-u", "t.py"]),
        ({"launcher": "python", "command": ["a"], "args": []}, ["command", "--"], ["a"]),
    ],
)
def test_the_agent_wraps_the_launcher(
    spec: dict[str, Any], command: list[str], args: list[str]
) -> None:
    container = trainer(pod(job(**spec)))
    assert container["command"] == ["python3", "-u", "/ddpjob/agent/agent.pyz", *command]
    assert container["args"] == args


def read_only(value: object, **more: Any) -> dict[str, Any]:
    """A template whose trainer's root file system is so."""
    container = {"name": "trainer", "securityContext": {"readOnlyRootFilesystem": value}, **more}
    return {"spec": {"containers": [container], "volumes": [{"name": "own", "emptyDir": {}}]}}


@pytest.mark.parametrize(
    ("template", "mounted"),
    [
        (read_only(True), "ddpjob-tmp"),
        (read_only(False), None),
        (read_only(True, volumeMounts=[{"name": "own", "mountPath": "/tmp/"}]), "own"),
        (read_only(True, volumeMounts=[{"name": "own", "mountPath": "/tmp/x"}]), "ddpjob-tmp"),
    ],
)
def test_a_trainer_that_may_not_write_into_its_image_has_a_tmp(
    template: dict[str, Any], mounted: str | None
) -> None:
    made = pod(job(template=template))
    places = {m["mountPath"].rstrip("/"): m["name"] for m in trainer(made)["volumeMounts"]}
    assert places.get("/tmp") == mounted
    volumes = [volume["name"] for volume in made["spec"]["volumes"]]
    assert volumes.count("ddpjob-tmp") == (mounted == "ddpjob-tmp")


@pytest.mark.parametrize(
    ("spec", "several", "processes"),
    [
        ({"nnodes": 1}, False, "1"),
        ({"nnodes": 2}, True, "2"),
        ({"nnodes": 3, "resources": {"limits": {"nvidia.com/gpu": 8}}}, True, "24"),
        (
            {"nnodes": 1, "nprocPerNode": "cpu", "resources": {"limits": {"cpu": "3500m"}}},
            True,
            "3",
        ),
    ],
)
def test_accelerate_is_told_everything(spec: dict[str, Any], several: bool, processes: str) -> None:
    (*launch, script) = trainer(pod(job(launcher="accelerate", args=["t.py"], **spec)))["args"]
    assert launch[:4] == ["python3", "-u", "-m", "accelerate.commands.launch"] and script == "t.py"
    flags = launch[4:]
    assert ("--multi_gpu" in flags) == several
    named = [flag for flag in flags if flag != "--multi_gpu"]
    given = dict(zip(named[::2], named[1::2], strict=True))
    assert given["--num_processes"] == processes
    assert given["--num_machines"] == str(spec["nnodes"])
    assert given["--machine_rank"] == "$(PET_NODE_RANK)"
    assert given["--main_process_ip"] == "$(PET_MASTER_ADDR)"


def test_launcher_none_runs_the_image_as_it_is() -> None:
    body = pod(job(launcher="none", args=["--fast"]))
    assert "command" not in trainer(body) and trainer(body)["args"] == ["--fast"]
    assert "ddpjob-agent" not in {v["name"] for v in body["spec"]["volumes"]}


def test_a_users_value_replaces_a_default_of_ours() -> None:
    body = pod(
        job(env=[{"name": "OMP_NUM_THREADS", "value": "7"}, {"name": "HOME", "value": "/h"}])
    )
    names = [v["name"] for v in trainer(body)["env"]]
    assert len(names) == len(set(names))
    assert env(body)["OMP_NUM_THREADS"] == "7" and env(body)["HOME"] == "/h"


def test_shared_memory_can_be_bounded_and_turned_off() -> None:
    def shm(**shm: Any) -> list[Any]:
        volumes = pod(job(shm=shm))["spec"]["volumes"]
        return [v["emptyDir"] for v in volumes if v["name"] == "ddpjob-shm"]

    assert shm(sizeLimit="2Gi") == [{"medium": "Memory", "sizeLimit": "2Gi"}]
    assert shm(enabled=False) == []


# Overlay


def test_an_overlay_merges_by_the_apis_keys() -> None:
    body = pod(
        job(
            template={
                "metadata": {"labels": {"team": "vision"}},
                "spec": {
                    "nodeSelector": {"disk": "ssd"},
                    "containers": [
                        {"name": "trainer", "env": [{"name": "A", "value": "1"}]},
                        {"name": "proxy", "image": "proxy:1"},
                    ],
                    "volumes": [{"name": "more", "emptyDir": {}}],
                    "securityContext": {"runAsUser": 2000},
                },
            }
        )
    )
    assert body["metadata"]["labels"]["team"] == "vision"
    assert body["metadata"]["labels"][names.JOB_LABEL] == "digits"
    assert [c["name"] for c in body["spec"]["containers"]] == ["trainer", "proxy"]
    assert env(body)["A"] == "1" and env(body)["RANK"] == "0"
    assert body["spec"]["securityContext"]["runAsUser"] == 2000
    assert body["spec"]["securityContext"]["runAsNonRoot"] is True
    proxy = body["spec"]["containers"][1]
    assert proxy["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"spec": {"hostname": "x"}}, "spec.hostname"),
        ({"spec": {"hostnameOverride": "x"}}, "spec.hostnameOverride"),
        ({"spec": {"hostNetwork": True}}, "spec.hostNetwork"),  # by the allow-list
        ({"spec": {"activeDeadlineSeconds": 10**6}}, "spec.activeDeadlineSeconds"),
        ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy"),
        (
            {"spec": {"containers": [{"name": "trainer", "restartPolicy": "Always"}]}},
            "spec.containers[trainer].restartPolicy",
        ),
        ({"spec": {"terminationGracePeriodSeconds": 5}}, "spec.terminationGracePeriodSeconds"),
        (
            {"spec": {"containers": [{"name": "trainer", "command": ["sh"]}]}},
            "spec.containers[trainer].command",
        ),
        (
            {
                "spec": {
                    "containers": [{"name": "trainer", "env": [{"name": "RANK", "value": "9"}]}]
                }
            },
            "spec.containers[trainer].env[RANK]",
        ),
        (
            {"spec": {"containers": [{"name": "trainer", "env": [{"name": "PET_TEE"}]}]}},
            "spec.containers[trainer].env[PET_TEE]",
        ),
        (
            {
                "spec": {
                    "containers": [
                        {
                            "name": "trainer",
                            "volumeMounts": [{"name": "x", "mountPath": "/ddpjob/agent"}],
                        }
                    ]
                }
            },
            "spec.containers[trainer].volumeMounts[/ddpjob/agent]",
        ),
        ({"metadata": {"labels": {names.RANK_LABEL: "0"}}}, f"metadata.labels[{names.RANK_LABEL}]"),
        ({"metadata": {"labels": {"team": 7}}}, "metadata.labels[team]"),
        ({"metadata": {"name": "x"}}, "metadata.name"),
        ({"spec": {"volumes": [{"name": "ddpjob-run", "emptyDir": {}}]}}, "spec.volumes[0].name"),
        ({"spec": {"containers": {"name": "trainer"}}}, "spec.containers"),
        ({"spec": {"containers": [{"image": "nameless"}]}}, "spec.containers[0]"),
        ({"spec": {"affinity": {"nodeAffinity": 7}}}, "spec.affinity.nodeAffinity"),
        ({"spec": {"tolerations": [{"key": 5}]}}, "spec.tolerations[0].key"),
        ({"spec": {"ephemeralContainers": []}}, "spec.ephemeralContainers"),
        ({"status": {}}, "status"),
        ({"spec": []}, "spec"),
    ],
)
def test_an_overlay_cannot_have_what_is_ours(template: dict[str, Any], path: str) -> None:
    specs: dict[str, dict[str, Any]] = {"": {"template": template}}
    specs["master."] = {"master": specs[""]}
    for place, spec in specs.items():
        with pytest.raises(InvalidJob) as caught:
            pod(job(**spec))
        assert caught.value.path == f"spec.{place}template.{path}"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("metadata", ({"labels": {"env": "all"}}, {"labels": {"env": "first"}})),
        ("spec", ({"nodeSelector": {"ports": "all"}}, {"nodeSelector": {"ports": "first"}})),
        ("spec", ({"unknown": {"env": [1]}}, {"unknown": {"env": [{"name": []}]}})),
    ],
)
def test_what_is_only_called_like_a_list_of_the_pod_is_replaced(field: str, values: Any) -> None:
    templates = [{field: value} for value in values]
    ours = job(template=templates[0], master={"template": templates[1]})
    for rank, value in enumerate(reversed(values)):
        ((name, part),) = value.items()
        assert pod(ours, rank)[field][name].items() >= part.items()


def test_an_overlay_may_repeat_what_is_ours() -> None:
    assert pod(job(**overlay(restartPolicy="Never")))["spec"]["restartPolicy"] == "Never"


def test_a_mount_needs_its_volume() -> None:
    with pytest.raises(InvalidJob, match="no volume has the name, got 'nowhere'"):
        pod(job(volumeMounts=[{"name": "nowhere", "mountPath": "/x"}]))


# Allow-list


@pytest.mark.parametrize(
    ("spec", "setting", "allowed"),
    [
        (overlay(serviceAccountName="a"), "serviceAccountNames", ["a"]),
        (overlay(automountServiceAccountToken=True), "serviceAccountNames", ["default"]),
        (
            overlay(priorityClassName="system-node-critical"),
            "priorityClassNames",
            ["system-node-critical"],
        ),
        (
            {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]},
            "volumeTypes",
            ["emptyDir", "configMap", "hostPath"],
        ),
        (
            overlay(
                initContainers=[
                    {"name": "i", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}
                ]
            ),
            "capabilities",
            ["IPC_LOCK"],
        ),
    ],
)
def test_a_name_is_enough_to_allow_it(
    spec: dict[str, Any], setting: str, allowed: list[str]
) -> None:
    with pytest.raises(InvalidJob, match=rf"policy\.{setting}\)"):
        pod(job(**spec))
    assert pod(job(**spec), policy=Policy.model_validate({setting: allowed}))


MASTER = {
    "image": "master:1",
    "resources": {"limits": {"cpu": "4"}},
    "template": {"metadata": {"labels": {"part": "master"}}, "spec": {"nodeSelector": {"a": "b"}}},
}


def test_rank_0_has_its_own_image_resources_and_overlay() -> None:
    whole = job(
        master=MASTER,
        resources={"limits": {"cpu": "1"}},
        template={"spec": {"nodeSelector": {"pool": "train"}}},
    )
    first, other = pod(whole, 0), pod(whole, 1)
    assert (trainer(first)["image"], trainer(other)["image"]) == ("master:1", "trainer:1")
    assert (env(first)["OMP_NUM_THREADS"], env(other)["OMP_NUM_THREADS"]) == ("4", "1")
    assert first["spec"]["nodeSelector"] == {"pool": "train", "a": "b"}
    assert other["spec"]["nodeSelector"] == {"pool": "train"}
    assert "part" in first["metadata"]["labels"] and "part" not in other["metadata"]["labels"]


def test_both_kinds_of_pods_carry_one_hash_that_knows_both() -> None:
    def timestamp(**spec: Any) -> render.PodTemplate:
        return render.pods(job(**spec), AGENT, Policy())

    def noted(stamp: render.PodTemplate, rank: int) -> str:
        found: str = json.loads(stamp.body(rank))["metadata"]["annotations"]["ddpjob.dev/spec-hash"]
        return found

    one, two = timestamp(master={"image": "master:1"}), timestamp(master={"image": "master:2"})
    assert noted(one, 0) == noted(one, 1) == one.spec_hash
    assert len({one.spec_hash, two.spec_hash, timestamp().spec_hash}) == 3


def test_a_checkpoint_on_rank_0_is_mounted_there_alone() -> None:
    checkpoint = {"volume": {"persistentVolumeClaim": {"claimName": "c"}}, "mountOn": "Rank0"}
    first, other = (pod(job(checkpoint=checkpoint), rank) for rank in (0, 1))
    assert env(first)["DDPJOB_CHECKPOINT_DIR"] == "/checkpoints"
    assert "DDPJOB_CHECKPOINT_DIR" not in env(other)
    assert "ddpjob-checkpoint" in {volume["name"] for volume in first["spec"]["volumes"]}
    assert "ddpjob-checkpoint" not in {volume["name"] for volume in other["spec"]["volumes"]}


# Nodes


def taints(body: dict[str, Any]) -> dict[str, Any]:
    return {t.get("key"): t.get("tolerationSeconds") for t in body["spec"]["tolerations"]}


def test_a_users_own_toleration_of_a_lost_node_has_its_way() -> None:
    key = "node.kubernetes.io/unreachable"
    own = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600}
    assert taints(pod(job(template={"spec": {"tolerations": [own]}}))) == {
        key: 600,
        "node.kubernetes.io/not-ready": 5,
    }
    everything = {"operator": "Exists"}
    assert taints(pod(job(template={"spec": {"tolerations": [everything]}}))) == {None: None}


def test_avoided_nodes_stand_in_every_alternative() -> None:
    def terms(**spec: Any) -> list[Any]:
        body = pod(job(status={"avoidedNodes": ["a", "b"]}, **spec))
        affinity = body["spec"]["affinity"]["nodeAffinity"]
        found: list[Any] = affinity["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        return found

    off = [{"key": "metadata.name", "operator": "NotIn", "values": [n]} for n in ("a", "b")]
    assert terms() == [{"matchFields": off}]
    zones = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
        for zone in ("x", "y")
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}
    template = {"spec": {"affinity": {"nodeAffinity": required}}}
    assert terms(template=template) == [{**zone, "matchFields": off} for zone in zones]
    assert "affinity" not in pod(job())["spec"]


# Network


def network(policy: Policy | None = None, **spec: Any) -> dict[str, Any]:
    found = render.network_policy(job(**spec), policy or Policy())
    assert found is not None
    return dict(found["spec"])


def test_the_jobs_own_pods_and_nobody_else_may_come_in() -> None:
    own = {"podSelector": {"matchLabels": {"ddpjob.dev/job-uid": UID}}}
    spec = network()
    assert spec == {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]}
    assert spec["podSelector"]["matchLabels"].items() <= pod(job())["metadata"]["labels"].items()


def test_the_operator_may_ask_agents_and_nothing_more() -> None:
    operator = {"podSelector": {"matchLabels": {"app": "operator"}}}
    rules = network(Policy(agent_clients=[operator]))["ingress"]
    port = trainer(pod(job()))["ports"][0]["containerPort"]
    assert rules[1:] == [{"from": [operator], "ports": [{"protocol": "TCP", "port": port}]}]


def test_with_egress_pods_reach_each_other_dns_and_what_is_named() -> None:
    block = {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}
    named = {"to": [{"ipBlock": block}], "ports": [{"protocol": "TCP", "port": 443}]}
    spec = network(networkPolicy={"egress": [named]})
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    own, dns, rest = spec["egress"]
    assert own == {"to": spec["ingress"][0]["from"]} and rest == named
    wanted = {(protocol, port) for protocol in ("TCP", "UDP") for port in (53, 5353)}
    assert {(p["protocol"], p["port"]) for p in dns["ports"]} == wanted
    assert len(network(networkPolicy={"egress": []})["egress"]) == 2


def test_a_job_may_have_none() -> None:
    assert render.network_policy(job(networkPolicy={"enabled": False}), Policy()) is None
