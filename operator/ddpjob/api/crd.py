"""The CustomResourceDefinition, made from the models.

Structural schema, defaults, CEL rules, printer columns.
"""

from typing import Any

from ddpjob import names
from ddpjob.api.base import fields_of
from ddpjob.api.job import NAME_RULES, DDPJob
from ddpjob.api.spec import MUTABLE_FIELDS, Spec

Schema = dict[str, Any]

# Words of JSON schema that a structural schema does not have.
_DROPPED = {"title", "$defs", "const"}
# JSON readers keep integers exact up to here.
_INT64 = 2**53

COLUMNS = (
    ("State", "string", ".status.state", "State is the job's state in one word."),
    (
        "Nodes",
        "string",
        ".status.summary.nodes",
        "Nodes is the number of nodes that run or have succeeded, of all nodes.",
    ),
    ("Step", "string", ".status.summary.step", "Step is the last reported step, of all steps."),
    ("Loss", "string", ".status.summary.loss", "Loss is the last reported loss."),
    ("ETA", "string", ".status.summary.eta", "ETA is the time that is left."),
    (
        "Restarts",
        "integer",
        ".status.restarts",
        "Restarts is the number of times that the group was started again.",
    ),
    (
        "Age",
        "date",
        ".metadata.creationTimestamp",
        "Age is the time since the job was created.",
    ),
    (
        "Reason",
        "string",
        ".status.summary.reason",
        "Reason is the reason for which the job is not simply running, or has failed.",
    ),
)
# `kubectl get -o wide` shows these too.
WIDE_COLUMNS = (
    (
        "Attempt",
        "string",
        ".status.summary.attempt",
        "Attempt has the numbers of the current attempt and of its round.",
    ),
    (
        "Pod",
        "string",
        ".status.summary.pod",
        "Pod is the pod that the reason is about, or else that of node rank 0.",
    ),
    ("Node", "string", ".status.summary.node", "Node is the node on which that pod runs or ran."),
    ("Image", "string", ".spec.image", "Image is the image of the trainer container."),
)


def crd() -> Schema:
    """Return the whole definition, as `charts/ddpjob/files/crd.yaml` has it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": ["ddp"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        *(_column(*column) for column in COLUMNS),
                        *({**_column(*column), "priority": 1} for column in WIDE_COLUMNS),
                    ],
                    "schema": {"openAPIV3Schema": openapi_schema()},
                }
            ],
        },
    }


def _column(name: str, kind: str, path: str, description: str) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path, "description": description}


def openapi_schema() -> Schema:
    """Return the structural schema of one DDPJob."""
    document = DDPJob.model_json_schema(by_alias=True)
    root = _structural(document, document["$defs"])
    root["properties"]["apiVersion"] = {"type": "string", "maxLength": 64}
    root["properties"]["kind"] = {"type": "string", "maxLength": 64}
    # The API server adds the rest of the metadata, but rules can read only the fields that are
    # here.
    root["properties"]["metadata"] = {"type": "object", "properties": {"name": {"type": "string"}}}
    root["required"] = ["spec"]
    root["properties"]["status"].pop("default", None)
    root["x-kubernetes-validations"] = [rule.to_json() for rule in NAME_RULES] + [
        _immutable(name) for name in fields_of(Spec) if name not in (*MUTABLE_FIELDS, "template")
    ]
    return root


def _immutable(name: str) -> Schema:
    """Return the rule that this field of the spec changes only while no pods run.

    That is while the job is Pending or Suspended. The rule stands at the root, because only there
    it can read `status`, and because a rule on the field itself does not run when the field is
    added or removed.
    """
    free = (
        "!has(oldSelf.status) || !has(oldSelf.status.state) || "
        "oldSelf.status.state in ['Pending', 'Suspended']"
    )
    same = _same(f"spec.{name}")
    if name == "master":  # its template is open, and the API server cannot compare open subtrees
        parts = " && ".join(_same(f"spec.master.{part}") for part in ("image", "resources"))
        has, had = "has(self.spec.master)", "has(oldSelf.spec.master)"
        same = f"{has} == {had} && (!{has} || {parts})"
    return {
        "rule": f"{free} || ({same})",
        "message": "cannot change once the job has started; suspend it first, "
        "and change it when status.state is Suspended (one that has finished: delete it, and "
        "create it again)",
        "fieldPath": f".spec.{name}",
    }


def _same(path: str) -> str:
    """Return the CEL expression that this field has not changed, been added or been removed."""
    here, there = f"self.{path}", f"oldSelf.{path}"
    return f"has({here}) == has({there}) && (!has({here}) || {here} == {there})"


def _structural(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """Return `schema` with references resolved, without nulls, and with a bound on all integers."""
    if "$ref" in schema:
        target = definitions[schema["$ref"].removeprefix("#/$defs/")]
        # A field's own keywords win over those of its type.
        return _structural(
            {**target, **{k: v for k, v in schema.items() if k != "$ref"}}, definitions
        )
    if "anyOf" in schema and not schema.get("x-kubernetes-int-or-string"):
        (only,) = [branch for branch in schema["anyOf"] if branch != {"type": "null"}]
        rest = {k: v for k, v in schema.items() if k not in ("anyOf", "default")}
        return _structural({**only, **rest}, definitions)
    result: Schema = {k: v for k, v in schema.items() if k not in _DROPPED}
    if isinstance(schema.get("default"), dict):
        # The API server takes a null in a default on create, and refuses it on update.
        result["default"] = {k: v for k, v in schema["default"].items() if v is not None}
    if "const" in schema:
        result["enum"] = [schema["const"]]
    if "description" in result:
        result["description"] = " ".join(str(result["description"]).split())
    if "properties" in schema:
        result["properties"] = {
            name: _structural(part, definitions) for name, part in schema["properties"].items()
        }
        result.pop(
            "additionalProperties", None
        )  # closed by nature: unknown fields are refused or pruned
    elif isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _structural(schema["additionalProperties"], definitions)
    elif not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.pop("additionalProperties", None)
    if "items" in schema:
        result["items"] = _structural(schema["items"], definitions)
    if schema.get("type") == "integer":
        result.setdefault("maximum", _INT64)
        result.setdefault("minimum", -_INT64)
        result["format"] = "int64" if result["maximum"] > 2**31 - 1 else "int32"
    return result
