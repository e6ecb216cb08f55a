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
_DROPPED = {"title", "$defs", "propertyNames"}
# JSON readers keep integers exact up to here.
_INT64 = 2**53

# The columns of `kubectl get`: the field that each of them prints.
COLUMNS = {
    "State": "status.state",
    "Nodes": "status.summary.nodes",
    "Step": "status.summary.step",
    "Loss": "status.summary.loss",
    "ETA": "status.summary.eta",
    "Restarts": "status.restarts",
    "Age": "metadata.creationTimestamp",
    "Reason": "status.summary.reason",
}
# The schema has only what rules read of the metadata.
_CREATED = {"type": "date", "description": "Age is the time since the job was created."}
# `kubectl get -o wide` shows these too.
WIDE_COLUMNS = {
    "Attempt": "status.summary.attempt",
    "Pod": "status.summary.pod",
    "Node": "status.summary.node",
    "Image": "spec.image",
}


def crd() -> Schema:
    """Return the whole definition, as `charts/ddpjob/files/crd.yaml` has it."""
    schema = openapi_schema()
    columns = [_column(schema, *column) for column in COLUMNS.items()]
    wide = [_column(schema, *column) | {"priority": 1} for column in WIDE_COLUMNS.items()]
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
                    "additionalPrinterColumns": columns + wide,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def _column(schema: Schema, name: str, path: str) -> Schema:
    """Return a column, with the type and the description of its field."""
    field = schema
    for part in path.split("."):
        field = field["properties"].get(part, _CREATED)
    about = {key: field[key] for key in ("type", "description")}
    return {"name": name, "jsonPath": f".{path}", **about}


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

    That is while the job is Pending, Queued or Suspended. The rule stands at the root, because only
    there it can read `status`, and because a rule on the field itself does not run when the field
    is added or removed.
    """
    state = "oldSelf.?status.?state.orValue('Pending')"
    free = f"{state} in ['Pending', 'Queued', 'Suspended']"
    same = _same(f"spec.{name}")
    if name == "master":  # its template is open, and the API server cannot compare open subtrees
        parts = " && ".join(_same(f"spec.master.{part}") for part in ("image", "resources"))
        has, had = "has(self.spec.master)", "has(oldSelf.spec.master)"
        same = f"{has} == {had} && (!{has} || {parts})"
    return {
        "rule": f"{free} || ({same})",
        "message": "cannot change once the job has started; suspend it first, or ddpjob rerun",
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
        own = {k: v for k, v in schema.items() if k != "$ref"}
        return _structural({**target, **own}, definitions)  # a field's own keywords win
    if "anyOf" in schema and not schema.get("x-kubernetes-int-or-string"):
        (only,) = [branch for branch in schema["anyOf"] if branch != {"type": "null"}]
        rest = {k: v for k, v in schema.items() if k not in ("anyOf", "default")}
        return _structural({**only, **rest}, definitions)
    result: Schema = {k: v for k, v in schema.items() if k not in _DROPPED}
    if isinstance(schema.get("default"), dict):
        # The API server takes a null in a default on create, and refuses it on update.
        result["default"] = {k: v for k, v in schema["default"].items() if v is not None}
    if "description" in result:
        result["description"] = " ".join(str(result["description"]).split())
    if "properties" in schema:
        result["properties"] = {
            name: _structural(part, definitions) for name, part in schema["properties"].items()
        }
    # Objects are closed by nature: unknown fields are refused or pruned.
    if not isinstance(result.get("additionalProperties"), dict):
        result.pop("additionalProperties", None)
    for name in ("items", "additionalProperties"):
        if name in result:
            result[name] = _structural(result[name], definitions)
    if schema.get("type") == "integer":
        result.setdefault("maximum", _INT64)
        result.setdefault("minimum", -_INT64)
        result["format"] = "int64" if result["maximum"] > 2**31 - 1 else "int32"
    return result
