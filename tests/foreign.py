"""Jobs of other operators for tests, a line each, and odd ones out of the schema."""

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

from ddpjob import api
from ddpjob.convert.objects import Converted, convert
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from ddpjob.pods.allowlist import Policy
from tests.fuzz import Fuzz, pod_schemas

IMAGE = "registry.example.com/train:1"
# The spec that a PyTorchJob of three Workers becomes.
PYTORCH_SPEC = {"image": IMAGE, "args": ["train.py"], "nnodes": 3, "cleanPodPolicy": "None"}


def template(container: str = "pytorch", /, **fields: Any) -> Body:
    """A pod template whose trainer has these fields; `pod_…` are fields of the pod."""
    pod = {name[4:]: fields.pop(name) for name in list(fields) if name.startswith("pod_")}
    main = {"name": container, "image": IMAGE, "command": ["torchrun", "train.py"], **fields}
    main = {name: value for name, value in main.items() if value is not None}
    return {"spec": {"containers": [main, *pod.pop("containers", [])], **pod}}


def pytorch_job(*, worker: Body | None = None, master: Body | None = None, **spec: Any) -> Body:
    """A PyTorchJob with these fields of the spec: a Worker of three, and a Master if there is one.

    `worker` and `master` are what a replica spec has beside its template, or in place of it.
    """
    roles: Body = {"Worker": {"replicas": 3, "template": template(), **(worker or {})}}
    if master is not None:
        roles["Master"] = {"replicas": 1, "template": template(), **master}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "digits"},
        "spec": {"pytorchReplicaSpecs": roles, **spec},
    }


def train_job(runtime: str = "torch-distributed", **spec: Any) -> Body:
    """A TrainJob with these fields of the spec."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "digits"},
        "spec": {"runtimeRef": {"name": runtime}, **spec},
    }


def replicated_job(name: str, ancestor: str, pod: Body, **job: Any) -> Body:
    """A job of a JobSet."""
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": ancestor}
    body = {"metadata": {"labels": labels}, "spec": {"template": pod, **job}}
    return {"name": name, "template": body}


def runtime(name: str = "own", *, pod: Body | None = None, jobset: Any = (), **spec: Any) -> Body:
    """A ClusterTrainingRuntime for torch; `jobset` are fields of its JobSet's spec."""
    jobs = [replicated_job("node", "trainer", template("node") if pod is None else pod)]
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name},
        "spec": {
            "mlPolicy": {"numNodes": 2, "torch": {}},
            "template": {"spec": {"replicatedJobs": jobs, **dict(jobset)}},
            **spec,
        },
    }


def spec_of(body: Body, *runtimes: Body) -> Body:
    """The spec of the DDPJob that `body` becomes."""
    found: Body = convert(body, runtimes).job["spec"]
    return found


def notes_of(body: Body, *runtimes: Body) -> list[str]:
    """What is said of the conversion."""
    return [str(note) for note in convert(body, runtimes).notes]


def note_at(converted: Converted, path: str) -> str:
    """What is said of the one field whose path ends so."""
    (found,) = [str(note) for note in converted.notes if note.path.endswith(path)]
    return found


def everything(spec: Body) -> Policy:
    """An allow-list that refuses nothing of the spec."""
    overlays: list[Any] = [spec.get("template"), (spec.get("master") or {}).get("template")]
    parts = [overlay["spec"] for overlay in overlays if overlay and "spec" in overlay]
    # Kubernetes' own classes are not among "*".
    classes = [str(part.get("priorityClassName")) for part in parts]
    return Policy(
        service_account_names=["*"],
        priority_class_names=["*", *classes],
        volume_types=["*"],
        capabilities=["*"],
        host_network=True,
        host_pid=True,
        host_ipc=True,
        host_ports=True,
        node_name=True,
        privileged=True,
    )


_COMMANDS: tuple[list[str], ...] = (
    ["torchrun", "train.py"],
    ["torchrun", "--nproc_per_node=2", "--rdzv_backend", "c10d", "-m", "pkg.train", "--lr", "1"],
    ["torchrun", "--no-python", "./run"],
    ["torchrun", "--nnodes"],
    ["python", "-m", "torch.distributed.launch", "--use-env", "train.py"],
    ["accelerate", "launch", "--num_processes", "6", "train.py"],
    ["accelerate", "launch", "--mixed_precision=bf16", "train.py"],
    ["python3", "-u", "train.py"],
    ["bash", "-c", "torchrun --master_addr=$MASTER_ADDR train.py"],
    ["python3", "-c", "import torch"],
    ["python3"],
    [],
)


class _Foreign(Fuzz):
    """Odd jobs of other operators."""

    def template(self, container: str) -> Body:
        """A pod template, most parts of which Kubernetes would take."""
        body = self.overlay()
        if not isinstance(body.get("spec"), dict):
            body["spec"] = {}
        spec = body["spec"]
        self.is_open = True
        main = self.value(pod_schemas()["io.k8s.api.core.v1.Container"], "container", 2)
        self.is_open = False
        if isinstance(main, dict):
            main |= {"name": container, "command": self.random.choice(_COMMANDS), "image": IMAGE}
            main["args"] = self.random.choice(([], ["--epochs", "2"], ["train.py"]))
        others = spec.get("containers")
        spec["containers"] = [main, *(others if isinstance(others, list) else [])]
        return body

    def pytorch_job(self) -> Body:
        """A PyTorchJob."""
        worker: Body = {
            "replicas": self.random.choice((0, 1, 2)),
            "template": self.template("pytorch"),
        }
        master = dict(worker, replicas=1)
        if self.chance(0.5):
            master["template"] = self.template("pytorch")
            main, own = (role["template"]["spec"]["containers"][0] for role in (worker, master))
            if isinstance(main, dict) and isinstance(own, dict) and self.chance(0.8):
                own |= {name: main[name] for name in ("command", "args") if name in main}
        for role in (worker, master):
            if self.chance(0.5):
                policies = ("Always", "OnFailure", "Never", "ExitCode")
                role["restartPolicy"] = self.random.choice(policies)
        body = pytorch_job(worker=worker, master=master if self.chance(0.7) else None)
        spec = body["spec"]
        choices: Body = {
            "nprocPerNode": ("auto", "cpu", "gpu", "2", 3),
            "elasticPolicy": ({"minReplicas": 1, "maxRestarts": 2}, {"nProcPerNode": 2}),
            "runPolicy": ({"backoffLimit": 2, "suspend": True}, {"cleanPodPolicy": "All"}),
        }
        spec |= {name: self.random.choice(of) for name, of in choices.items() if self.chance(0.4)}
        return self.spoilt(body)

    def train_job(self) -> tuple[Body, Body]:
        """A TrainJob, and its runtime."""
        own = runtime(pod=self.template("node"))
        choices: Body = {
            "trainer": ({"numNodes": 3}, {"command": ["python", "a.py"]}, {"numProcPerNode": 2}),
            "suspend": (True, False),
            "podTemplateOverrides": (
                [{"targetJobs": [{"name": "node"}], "spec": self.overlay().get("spec")}],
            ),
        }
        spec = {name: self.random.choice(of) for name, of in choices.items() if self.chance(0.4)}
        return self.spoilt(train_job("own", **spec)), self.spoilt(own)

    def spoilt(self, body: Body) -> Body:
        """The body, in one case of five with something else somewhere."""
        if self.chance(0.2):
            self.spoil(body)
        return body


def fuzzed_pytorch_job(number: int) -> Body:
    """PyTorchJob `number`, the same every time."""
    return _Foreign(Random(number)).pytorch_job()


def fuzzed_train_job(number: int) -> tuple[Body, Body]:
    """TrainJob `number` with its runtime, the same every time."""
    return _Foreign(Random(number)).train_job()


def conversions(cases: Iterable[tuple[Body, Any]]) -> Iterator[tuple[Body, Converted]]:
    """The jobs that are converted, and what each becomes, checked. All others are refused in words.

    A case is a job with its runtime.
    """
    refused = 0
    for body, known in cases:
        try:
            converted = convert(body, [known])
        except InvalidJob as problem:
            assert "\n" not in str(problem) and len(str(problem)) < 1024, body
            refused += 1
        else:
            assert api.validate(converted.job) == [], body
            assert all(str(note).isprintable() for note in converted.notes), body
            yield body, converted
    assert refused
