"""Renames the labels by which selectors and variables of the other operators find their pods."""

import re
from typing import Any

from ddpjob import names
from ddpjob.convert.fields import Notes

# What a DDPJob's pods have in place of these labels, with the same meaning.
RENAMED = {
    "training.kubeflow.org/job-name": names.JOB_LABEL,
    "jobset.sigs.k8s.io/jobset-name": names.JOB_LABEL,
    "batch.kubernetes.io/job-completion-index": names.RANK_LABEL,
}
_FOREIGN = re.compile(
    r"(training\.kubeflow\.org|trainer\.kubeflow\.org|jobset\.sigs\.k8s\.io|batch\.kubernetes\.io)/"
)
_FIELD_PATH = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")


def rename_labels(value: Any, path: str, notes: Notes) -> Any:
    """Return `value`, a part of a pod, with the labels of a DDPJob's pods.

    It reads label selectors, and the fields of the pod that variables and files refer to.
    """
    if isinstance(value, list):
        return [rename_labels(item, f"{path}[{place}]", notes) for place, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    found = {name: rename_labels(part, f"{path}.{name}", notes) for name, part in value.items()}
    if isinstance(labels := found.get("matchLabels"), dict):
        where = f"{path}.matchLabels"
        found["matchLabels"] = {_label(key, where, notes): labels[key] for key in labels}
    if isinstance(keys := found.get("matchLabelKeys"), list):
        found["matchLabelKeys"] = [_label(key, f"{path}.matchLabelKeys", notes) for key in keys]
    if isinstance(found.get("key"), str) and "operator" in found:
        found["key"] = _label(found["key"], f"{path}.key", notes)
    if isinstance(field := found.get("fieldPath"), str) and (match := _FIELD_PATH.fullmatch(field)):
        label = _label(match[2], f"{path}.fieldPath", notes)
        if label != match[2]:
            found["fieldPath"] = f"metadata.labels['{label}']"
    return found


def _label(key: Any, path: str, notes: Notes) -> Any:
    """Return the label's name on pods of a DDPJob. Without one there, the name stays."""
    if not isinstance(key, str) or not _FOREIGN.match(key):
        return key
    if key in RENAMED:
        notes.changed(path, f"{key}: {RENAMED[key]} on the pods of a DDPJob")
        return RENAMED[key]
    notes.lost(path, f"{key}: the pods of a DDPJob do not have it")
    return key
