"""Every way out of a pod, tried by every door: nothing passes a default installation's allow-list.

Not an escape, and so left to Pod Security admission of the namespace: another user than 10001, root
included, which many images need. No pod reaches more by it than its creator could by a pod of his
own without privileges.
"""

import json
from collections.abc import Iterator

import pytest

from ddpjob.controller.controller import load_agent
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from tests.builders import job

AGENT = render.Agent(b"")
TOKEN = {"path": "t", "expirationSeconds": 600}
CERTIFICATE = {"signerName": "kubernetes.io/kube-apiserver-client-pod", "keyType": "ED25519"}

# (what a pod's spec asks for, the setting that refuses it)
OF_PODS: list[tuple[Body, str]] = [
    ({"hostNetwork": True}, "hostNetwork"),
    ({"hostPID": True}, "hostPID"),
    ({"hostIPC": True}, "hostIPC"),
    ({"hostUsers": True}, "privileged"),
    ({"nodeName": "node-1"}, "nodeName"),
    ({"serviceAccountName": "admin"}, "serviceAccountNames"),
    ({"serviceAccount": "admin"}, "serviceAccountNames"),
    ({"automountServiceAccountToken": True}, "serviceAccountNames"),
    ({"priorityClassName": "system-node-critical"}, "priorityClassNames"),
    ({"priorityClassName": "system-cluster-critical"}, "priorityClassNames"),
    *(
        ({"securityContext": context}, "privileged")
        for context in (
            {"seccompProfile": {"type": "Unconfined"}},
            {"appArmorProfile": {"type": "Unconfined"}},
            {"seLinuxOptions": {"type": "spc_t"}},
            {"windowsOptions": {"hostProcess": True}},
            {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]},
        )
    ),
]
# Sources that restricted pods may not have; all those of the API that are not in Policy's list.
VOLUMES: list[tuple[Body, str]] = [
    ({"hostPath": {"path": "/"}}, "volumeTypes"),
    ({"hostPath": {"path": "/var/run/containerd.sock", "type": "Socket"}}, "volumeTypes"),
    ({"emptyDir": {}, "hostPath": {"path": "/"}}, "volumeTypes"),
    *(
        ({kind: {}}, "volumeTypes")
        for kind in (
            *("awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "fc"),
            *("flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "iscsi", "nfs"),
            *("photonPersistentDisk", "portworxVolume", "quobyte", "rbd", "scaleIO", "storageos"),
            *("vsphereVolume", "inventedTomorrow"),
        )
    ),
    ({"projected": {"sources": [{"serviceAccountToken": TOKEN}]}}, "serviceAccountNames"),
    ({"projected": {"sources": [{"podCertificate": CERTIFICATE}]}}, "serviceAccountNames"),
    (
        {"projected": {"sources": [{"secret": {"name": "s"}, "serviceAccountToken": TOKEN}]}},
        "serviceAccountNames",
    ),
    ({"projected": {"sources": [{"inventedTomorrow": {}}]}}, "serviceAccountNames"),
]
OF_CONTAINERS: list[tuple[Body, str]] = [
    *(
        ({"securityContext": context}, setting)
        for context, setting in (
            ({"privileged": True}, "privileged"),
            ({"allowPrivilegeEscalation": True}, "privileged"),
            ({"procMount": "Unmasked"}, "privileged"),
            ({"seccompProfile": {"type": "Unconfined"}}, "privileged"),
            ({"appArmorProfile": {"type": "Unconfined"}}, "privileged"),
            ({"seLinuxOptions": {"type": "spc_t"}}, "privileged"),
            ({"windowsOptions": {"hostProcess": True}}, "privileged"),
            ({"capabilities": {"add": ["SYS_ADMIN"]}}, "capabilities"),
            ({"capabilities": {"add": ["ALL"]}}, "capabilities"),
            ({"capabilities": {"drop": []}}, "capabilities"),
            ({"capabilities": {"drop": ["SYS_ADMIN"]}}, "capabilities"),
        )
    ),
    ({"ports": [{"containerPort": 80, "hostPort": 80}]}, "hostPorts"),
    # The kubelet asks from the node, where no NetworkPolicy holds: 169.254.169.254 has secrets.
    *(
        ({probe: {action: {"host": "169.254.169.254", "port": 80}}}, "hostNetwork")
        for probe in ("livenessProbe", "readinessProbe", "startupProbe")
        for action in ("httpGet", "tcpSocket")
    ),
    *(
        ({"lifecycle": {hook: {"httpGet": {"host": "127.0.0.1", "port": 10250}}}}, "hostNetwork")
        for hook in ("postStart", "preStop")
    ),
]
APPARMOR = {"container.apparmor.security.beta.kubernetes.io/trainer": "unconfined"}


def doors(spec: Body) -> list[Body]:
    """The overlays by which `spec` can be asked for: everybody's, rank 0's, both together."""
    harmless = {"spec": {"nodeSelector": {"disk": "ssd"}}}
    return [
        {"template": {"spec": spec}},
        {"master": {"template": {"spec": spec}}},
        {"template": harmless, "master": {"template": {"spec": spec}}},
        {"template": {"spec": spec}, "master": {"template": harmless}},
    ]


def attempts() -> Iterator[tuple[list[Body], str]]:
    """(jobs that ask for one thing by different doors, the setting that refuses them)."""
    for spec, setting in OF_PODS:
        yield doors(spec), setting
    for source, setting in VOLUMES:
        yield doors({"volumes": [{"name": "v", **source}]}), setting
    for fields, setting in OF_CONTAINERS:
        image = {"image": "x", **fields}
        places: list[Body] = [
            {"containers": [{"name": "trainer", **fields}]},
            {"containers": [{"name": "sidecar", **image}]},
            {"initContainers": [{"name": "first", **image}]},
            {"initContainers": [{"name": "sidecar", "restartPolicy": "Always", **image}]},
        ]
        yield [asked for place in places for asked in doors(place)], setting
    template = {"metadata": {"annotations": APPARMOR}}
    yield [{"template": template}, {"master": {"template": template}}], "privileged"
    # Fields of the job itself, whose schema has these sources for installations that allow them.
    for source, setting in (
        ({"hostPath": {"path": "/"}}, "volumeTypes"),
        ({"nfs": {"server": "s", "path": "/"}}, "volumeTypes"),
        (
            {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            "serviceAccountNames",
        ),
    ):
        closed: list[Body] = [
            {"volumes": [{"name": "v", **source}]},
            {"data": {"volume": source}},
            {"checkpoint": {"volume": source}},
            {"checkpoint": {"volume": source, "mountOn": "Rank0"}},
            {"code": {"volume": source, "path": "a", "sha256": "0" * 64}},
        ]
        yield closed, setting


ATTEMPTS = list(attempts())
NAMES = [json.dumps(jobs[0])[:90] for jobs, _ in ATTEMPTS]


@pytest.mark.parametrize(("jobs", "setting"), ATTEMPTS, ids=NAMES)
def test_the_default_policy_refuses_every_escape(jobs: list[Body], setting: str) -> None:
    for spec in jobs:
        with pytest.raises(InvalidJob, match=rf"policy\.{setting}\)$"):
            render.pods(job(**spec), AGENT, Policy())


OPEN = {
    "serviceAccountNames": ["*"],
    "priorityClassNames": ["*", "system-node-critical", "system-cluster-critical"],
    "volumeTypes": ["*"],
    "capabilities": ["*"],
    **dict.fromkeys(("hostNetwork", "hostPID", "hostIPC", "hostPorts", "nodeName"), True),
    "privileged": True,
}


@pytest.mark.parametrize("jobs", [jobs for jobs, _ in ATTEMPTS], ids=NAMES)
def test_an_open_policy_allows_each_of_them(jobs: list[Body]) -> None:
    """So each is refused by the allow-list, and not for a slip in this file."""
    for spec in jobs:
        assert render.pods(job(**spec), AGENT, Policy.model_validate(OPEN))


@pytest.mark.parametrize("setting", sorted(OPEN))
def test_one_setting_does_not_open_another(setting: str) -> None:
    policy = Policy.model_validate({setting: OPEN[setting]})
    # A privileged container has every capability anyway.
    own = {setting, "capabilities"} if setting == "privileged" else {setting}
    for jobs, refused_by in ATTEMPTS:
        for spec in jobs if refused_by not in own else ():
            with pytest.raises(InvalidJob):
                render.pods(job(**spec), AGENT, policy)


@pytest.mark.parametrize(
    "path",
    [
        *("/ddpjob", "/ddpjob/agent", "/ddpjob/", "//ddpjob/agent", "ddpjob/agent", "/./ddpjob"),
        *("/x/../ddpjob/agent", "/ddpjob/../ddpjob/run", "/dev//shm", "/dev/./shm", "dev/shm"),
    ],
)
def test_our_mounts_cannot_be_hidden_by_another_spelling(path: str) -> None:
    mount = {"name": "trainer", "volumeMounts": [{"name": "v", "mountPath": path}]}
    spec = {"containers": [mount], "volumes": [{"name": "v", "emptyDir": {}}]}
    for asked in doors(spec):
        with pytest.raises(InvalidJob, match="is set by ddpjob"):
            render.pods(job(**asked), AGENT, Policy())


def test_what_restricted_pods_may_have_needs_no_setting() -> None:
    kinds: list[Body] = [{kind: {}} for kind in Policy().volume_types]
    sources: list[Body] = [
        {"configMap": {}},
        {"secret": {}},
        {"downwardAPI": {}},
        {"clusterTrustBundle": {}},
    ]
    kinds += [{"projected": {"sources": sources}}]
    probe = {"httpGet": {"port": 80, "path": "/"}, "periodSeconds": 5}
    context = {
        "runAsUser": 2000,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"},
    }
    fields = {"livenessProbe": probe, "securityContext": context}
    spec = {
        "serviceAccountName": "default",
        "priorityClassName": "batch",
        "runtimeClassName": "gvisor",
        "containers": [{"name": "trainer", **fields}, {"name": "side", "image": "x", **fields}],
        "volumes": [{"name": f"v{place}", **kind} for place, kind in enumerate(kinds)],
    }
    for asked in doors(spec):
        assert render.pods(job(**asked), AGENT, Policy())


def test_misshapen_options_for_windows_are_refused() -> None:
    with pytest.raises(InvalidJob, match="windowsOptions: must be an object"):
        template = {"spec": {"securityContext": {"windowsOptions": "x"}}}
        render.pods(job(template=template), load_agent(), Policy())
