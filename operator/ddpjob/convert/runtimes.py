"""Finds the training runtime of a TrainJob: in the input, or among those that Trainer ships."""

from collections.abc import Iterable
from typing import Any

from ddpjob.convert.fields import Fields
from ddpjob.json_depth import Body

API_VERSION = "trainer.kubeflow.org/v1alpha1"
API_GROUP = API_VERSION.partition("/")[0]
CLUSTER_KIND, KIND = "ClusterTrainingRuntime", "TrainingRuntime"
# The Trainer whose runtimes are described here.
SHIPPED_BY = "Kubeflow Trainer v2.3.0"
ANCESTOR_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"

_IMAGE = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"
_TUNE_IMAGE = "ghcr.io/kubeflow/trainer/torchtune-trainer"
# The runtimes that start no PyTorch under torchrun, and what they start.
_OTHERS = {
    "deepspeed-distributed": "MPI",
    "mlx-distributed": "MPI",
    "jax-distributed": "JAX",
    "xgboost-distributed": "XGBoost",
}


def _job(name: str, ancestor: str, container: Body) -> Body:
    pod = {"containers": [{"name": name, **container}]}
    return {
        "name": name,
        "template": {
            "metadata": {"labels": {ANCESTOR_LABEL: ancestor}},
            "spec": {"template": {"spec": pod}},
        },
    }


def _runtime(*jobs: Body, **jobset: Any) -> Body:
    spec = {"replicatedJobs": list(jobs), **jobset}
    return {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": spec}}


def _torchtune(config: str, *tokenizer: str) -> Body:
    mount = {"name": "initializer", "mountPath": "/workspace"}
    paths = ("output_dir=/workspace/output", "checkpointer.checkpoint_dir=/workspace/model")
    container = {
        "image": _TUNE_IMAGE,
        "command": [
            *("tune", "run", "--rdzv_endpoint=localhost:29500", "full_finetune_distributed"),
            *("--config", config, "dataset=torchtune.datasets.instruct_dataset"),
            *("dataset.source=parquet", "dataset.data_dir=/workspace/dataset/data"),
            *(*paths, *tokenizer),
        ],
        "resources": {"limits": {"nvidia.com/gpu": 2}},
        "volumeMounts": [mount],
    }
    initializers = [_job(name, name, {}) for name in ("dataset-initializer", "model-initializer")]
    claim = {"templates": [{"metadata": {"name": "initializer"}}]}
    return _runtime(*initializers, _job("node", "trainer", container), volumeClaimPolicies=[claim])


def _with_cache() -> Body:
    source = {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/jobset-name']"}}
    env = [{"name": "TRAIN_JOB_NAME", "valueFrom": source}]
    return _runtime(
        _job("dataset-initializer", "dataset-initializer", {}),
        _job("node", "trainer", {"image": _IMAGE, "env": env}),
    )


def _shipped(name: str) -> Body | None:
    """Return the spec of a runtime that Trainer ships, as far as a conversion needs it."""
    tokenizer = "tokenizer.path=/workspace/model/"
    llama = f"{tokenizer}original/tokenizer.model"
    merges = "tokenizer.merges_file=/workspace/model/merges.txt"
    match name:
        case "torch-distributed":
            return _runtime(_job("node", "trainer", {"image": _IMAGE}))
        case "torch-distributed-with-cache":
            return _with_cache()
        case "torchtune-llama3.2-1b":
            return _torchtune("llama3_2/1B_full", llama)
        case "torchtune-llama3.2-3b":
            return _torchtune("llama3_2/3B_full", llama)
        case "torchtune-qwen2.5-1.5b":
            return _torchtune("qwen2_5/1.5B_full", f"{tokenizer}vocab.json", merges)
    return None


class Runtimes:
    """The training runtimes that are known: those of the input first."""

    def __init__(self, objects: Iterable[Body] = ()) -> None:
        self._objects = list(objects)

    def find(self, reference: Fields, namespace: str) -> Body:
        """Return the spec of the runtime that a TrainJob of this namespace refers to.

        Raises InvalidJob if there is none, or none that starts PyTorch.
        """
        if (group := reference.take("apiGroup", str)) not in (None, API_GROUP):
            raise reference.error("apiGroup", f"must be {API_GROUP}", group)
        kind = reference.take("kind", str) or CLUSTER_KIND
        if kind not in (CLUSTER_KIND, KIND):
            raise reference.error("kind", f"must be {CLUSTER_KIND} or {KIND}", kind)
        name = reference.take("name", str)
        for body in self._objects:
            if self._fits(body, kind, name, namespace):
                found: Body = body.get("spec") or {}
                return found
        found_here = _shipped(name or "") if kind == CLUSTER_KIND else None
        if found_here is None:
            raise reference.error("name", _missing(name or ""), name)
        text = (
            f"{name!r}: not in the input, so as {SHIPPED_BY} has it; give its file if yours differs"
        )
        reference.notes.changed(reference.where("name"), text)
        return found_here

    @staticmethod
    def _fits(body: Body, kind: str, name: str | None, namespace: str) -> bool:
        metadata = body.get("metadata")
        if not isinstance(metadata, dict) or body.get("kind") != kind:
            return False
        own = metadata.get("namespace") or ""
        elsewhere = kind == KIND and own and namespace and own != namespace
        return metadata.get("name") == name and not elsewhere


def _missing(name: str) -> str:
    if name in _OTHERS:
        return f"must start PyTorch with torchrun, and this runtime starts {_OTHERS[name]}"
    return (
        f"must be a runtime of the input, or one that {SHIPPED_BY} ships for PyTorch: give its "
        "file too (kubectl get clustertrainingruntimes,trainingruntimes -o yaml)"
    )
