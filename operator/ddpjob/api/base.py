"""The base of every model of the API: closed, camelCase in JSON, with rules over several fields.

Each rule is a CEL expression for the API server and a predicate for checks without an API server.
Both stand side by side, so that both refuse the same files.
"""

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError


@dataclass(frozen=True)
class Rule:
    """A rule over several fields of a model.

    The API server runs `cel` on the model, and `holds` is the same rule in Python. `message` is
    about `field`, or about the whole model if `field` is empty.
    """

    cel: str
    holds: Callable[[Any], bool]
    message: str
    field: str = ""


def broken_rules(*broken: tuple[str, str]) -> PydanticCustomError:
    """Return the error that a validator raises for these (message, field) pairs.

    The field is a path below the value that is validated.
    """
    return PydanticCustomError("rules", "broken rules", {"broken": list(broken)})


class Model(BaseModel):
    """The base of all models. It is closed and frozen, and its JSON has camelCase keys."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )
    checks: ClassVar[tuple[Rule, ...]] = ()

    @pydantic.model_validator(mode="after")
    def _check_rules(self) -> "Model":
        broken = [(rule.message, rule.field) for rule in self.checks if not rule.holds(self)]
        if broken:
            raise broken_rules(*broken)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        """Return the JSON schema with the rules, where `crd` finds them."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.checks:
            schema["x-kubernetes-validations"] = [
                {"rule": rule.cel, "message": rule.message}
                | ({"fieldPath": f".{rule.field}"} if rule.field else {})
                for rule in cls.checks
            ]
        return schema

    def to_json(self) -> dict[str, Any]:
        """Return the model as the API server stores it.

        Keys are camelCase, defaults are filled in, and absent fields are left out.
        """
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


# There is no sign, because no amount in a pod is below zero. A float can hold the exponent.
QUANTITY = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[mkMGTPEnu]|[eE][+-]?[0-9]{1,2})?$"


def _quantity(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise broken_rules(("must be an integer or a text such as '500m' or '1Gi'", ""))
    text = value if isinstance(value, str) else str(value)
    if not (len(text) <= 32 and re.fullmatch(QUANTITY, text, re.ASCII)):
        raise broken_rules(("must be a quantity, not negative, such as 2, '500m' or '1Gi'", ""))
    return value


# An amount as Kubernetes writes it: an integer, or a string such as `500m` or `1Gi`.
Quantity = Annotated[
    int | str,
    BeforeValidator(_quantity),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY,
            "maxLength": 32,
            "minimum": 0,
            "x-kubernetes-int-or-string": True,
        }
    ),
]

_SUFFIXES = {suffix: 10 ** (3 * power) for power, suffix in enumerate("kMGTPE", start=1)}
_SUFFIXES |= {f"{suffix}i": 1024**power for power, suffix in enumerate("KMGTPE", start=1)}
_SUFFIXES |= {"m": 1e-3, "u": 1e-6, "n": 1e-9, "": 1}


def quantity_value(quantity: int | str) -> float:
    """Return the number that a Kubernetes quantity stands for.

    `500m` is 0.5, `1Ki` is 1024, `1e3` is 1000.
    """
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", str(quantity))
    assert match, quantity
    return float(match[1]) * float(_SUFFIXES[match[2]])


DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
ABSOLUTE_PATH = r"^/[^:]*$"
MOUNT_PATH = r"^(/[^/:]+)+$"
FILE_PATH = r"^[^/:]+(/[^/:]+)*$"
ENV_NAME = r"^[-._a-zA-Z][-._a-zA-Z0-9]*$"
IMAGE = r"^[!-~]+$"
CAMEL_CASE = r"^[A-Z][A-Za-z0-9]*$"
CIDR = r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"
MANAGER = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
MODULE = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
SHA256 = r"^[0-9a-f]{64}$"
SIGNAL = r"^SIG[A-Z0-9+-]+$"
# The rule that each pattern of the schema stands for, as messages have it.
PATTERNS = {
    DNS_LABEL: "must be lower-case letters, digits and '-', and must not begin or end with '-'",
    DNS_SUBDOMAIN: "must be lower-case letters, digits, '-' and '.', and no part between dots may "
    "begin or end with '-'",
    ABSOLUTE_PATH: "must begin with '/' and have no ':'",
    MOUNT_PATH: "must begin with '/', have no ':' and no '//', and not end in '/'",
    FILE_PATH: "must have no ':' and no '//', and neither begin nor end with '/'",
    ENV_NAME: "must be letters, digits, '_', '-' and '.', not beginning with a digit",
    IMAGE: "must be ASCII without blanks",
    CAMEL_CASE: "must be letters and digits, beginning with a capital, such as OOMKilled",
    CIDR: "must be a network such as 10.0.0.0/8",
    MANAGER: "must be <domain>/<name>, such as kueue.x-k8s.io/multikueue",
    MODULE: "must be the name of a Python module, such as transformers",
    SHA256: "must be a SHA-256 as 64 lower-case hexadecimal digits",
    SIGNAL: "must be a signal's name, such as SIGSEGV",
}

DnsLabel = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
DnsSubdomain = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
AbsolutePath = Annotated[str, Field(max_length=512, pattern=ABSOLUTE_PATH)]
Text = Annotated[str, Field(max_length=32768)]
Short = Annotated[str, Field(max_length=253)]


def unique(*keys: str) -> Any:
    """Return the annotation of a list whose items differ in these fields.

    In the schema it is `listType: map`.
    """

    def check(items: list[Any]) -> list[Any]:
        seen: set[Hashable] = set()
        twice: list[tuple[str, str]] = []
        for position, item in enumerate(items):
            key = tuple(getattr(item, _snake(name)) for name in keys)
            if key in seen:
                twice.append((f"duplicate {' and '.join(keys)}", f"[{position}].{keys[0]}"))
            seen.add(key)
        if twice:
            raise broken_rules(*twice)
        return items

    return _Unique(check, list(keys))


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class _Unique:
    """The annotation that `unique` returns: a check, and two keys of the schema."""

    def __init__(self, check: Callable[[list[Any]], list[Any]], names: list[str]) -> None:
        self.check, self.names = check, names

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return pydantic.AfterValidator(self.check).__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> Any:
        extra = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": self.names}
        return handler(core_schema) | extra
