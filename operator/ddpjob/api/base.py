"""The base of every model of the API: closed, camelCase in JSON, with rules over several fields.

Each rule is a CEL expression for the API server and a predicate for checks without an API server.
Both stand side by side, so that both refuse the same files.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel, to_snake
from pydantic.fields import FieldInfo
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

    def to_json(self) -> dict[str, str]:
        """Return the rule as a schema has it."""
        place = {"fieldPath": f".{self.field}"} if self.field else {}
        return {"rule": self.cel, "message": self.message, **place}


class Broken(NamedTuple):
    """A broken rule, as messages need it."""

    rule: str
    field: str = ""
    """A path below the value that was validated; empty for that value itself."""
    default: Any = None
    """What the API server would fill in at `field` if the object has nothing there."""


def broken_rules(*broken: Broken) -> PydanticCustomError:
    """Return the error that a validator raises for these broken rules."""
    return PydanticCustomError("rules", "broken rules", {"broken": list(broken)})


_PLAIN = re.compile(r"[\w./@$-]{1,253}", re.ASCII)


def below(part: str | int) -> str:
    """Return the path of a field, a key or an item below its parent.

    It is `.name` or `[0]`. A key that could be taken for more than a name is quoted, as in
    `['a: b']`.
    """
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if _PLAIN.fullmatch(part) else f"[{part!r}]"


def called(name: str) -> str:
    """Return the path of an item that is known by its name: `[name]`, or `['a: b']`."""
    return f"[{name}]" if _PLAIN.fullmatch(name) else f"[{name!r}]"


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
        if broken := [rule for rule in self.checks if not rule.holds(self)]:
            whole = self.to_json()
            raise broken_rules(
                *(Broken(rule.message, rule.field, part_at(whole, rule.field)) for rule in broken)
            )
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        """Return the JSON schema with the rules, where `crd` finds them."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.checks:
            schema["x-kubernetes-validations"] = [rule.to_json() for rule in cls.checks]
        return schema

    def to_json(self) -> dict[str, Any]:
        """Return the model as the API server stores it.

        Keys are camelCase, defaults are filled in, and absent fields are left out.
        """
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model by their JSON names."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def part_at(value: Any, path: str) -> Any:
    """Return the part of `value` at `path`, such as `name` or `[1].name`; None if it is absent."""
    for part in path.replace("[", ".").replace("]", "").split("."):
        if part.isdigit() and isinstance(value, list):
            value = value[int(part)]
        elif part:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


# There is no sign, because no amount in a pod is below zero. A float can hold the exponent.
QUANTITY = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[mkMGTPEnu]|[eE][+-]?[0-9]{1,2})?$"


def _quantity(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise broken_rules(Broken("must be an integer or a text such as '500m' or '1Gi'"))
    text = value if isinstance(value, str) else str(value)
    if not (len(text) <= 32 and re.fullmatch(QUANTITY, text, re.ASCII)):
        raise broken_rules(Broken("must be a quantity, not negative, such as 2, '500m' or '1Gi'"))
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
    """Return the number that a Kubernetes quantity stands for: `500m` is 0.5, `1Ki` is 1024."""
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", str(quantity))
    assert match, quantity
    return float(match[1]) * float(_SUFFIXES[match[2]])


DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
# Of an object that is not created yet, whose namespace may be empty.
NAMESPACE = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
ABSOLUTE_PATH = r"^/[^:]*$"
MOUNT_PATH = r"^(/[^/:]+)+$"
FILE_PATH = r"^[^/:]+(/[^/:]+)*$"
ENV_NAME = r"^[-._a-zA-Z][-._a-zA-Z0-9]*$"
IMAGE = r"^[!-~]+$"
CIDR = r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"
MANAGER = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
MODULE = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
SHA256 = r"^[0-9a-f]{64}$"
# The rule that each pattern of the schema stands for, as messages have it.
_LABEL_RULE = "must be lower-case letters, digits and '-', and must not begin or end with '-'"
PATTERNS = {
    DNS_LABEL: _LABEL_RULE,
    NAMESPACE: _LABEL_RULE,
    DNS_SUBDOMAIN: "must be lower-case letters, digits, '-' and '.', and no part between dots may "
    "begin or end with '-'",
    ABSOLUTE_PATH: "must begin with '/' and have no ':'",
    MOUNT_PATH: "must begin with '/', have no ':' and no '//', and not end in '/'",
    FILE_PATH: "must have no ':' and no '//', and neither begin nor end with '/'",
    ENV_NAME: "must be letters, digits, '_', '-' and '.', not beginning with a digit",
    IMAGE: "must be ASCII without blanks",
    CIDR: "must be a network such as 10.0.0.0/8",
    MANAGER: "must be <domain>/<name>, such as kueue.x-k8s.io/multikueue",
    MODULE: "must be the name of a Python module, such as transformers",
    SHA256: "must be a SHA-256 as 64 lower-case hexadecimal digits",
}

DnsLabel = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
DnsSubdomain = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
AbsolutePath = Annotated[str, Field(max_length=512, pattern=ABSOLUTE_PATH)]
Text = Annotated[str, Field(max_length=32768)]
Short = Annotated[str, Field(max_length=253)]


@dataclass(frozen=True, eq=False)  # typing asks for a hash
class Checked:
    """The annotation of a field that has a check beside those of pydantic.

    `broken` yields the rules that a value breaks. `keywords` say the same in the schema.
    """

    broken: Callable[[Any], Iterable[Broken]]
    keywords: Mapping[str, Any]

    def _check(self, value: Any) -> Any:
        if broken := list(self.broken(value)):
            raise broken_rules(*broken)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return pydantic.AfterValidator(self._check).__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> Any:
        return handler(core_schema) | self.keywords


def keeps(*rules: Rule) -> Checked:
    """Return the annotation of a value that keeps these rules. `holds` takes the value."""
    return Checked(
        lambda value: [Broken(rule.message) for rule in rules if not rule.holds(value)],
        {"x-kubernetes-validations": [rule.to_json() for rule in rules]},
    )


def exactly_one_of(*fields: str) -> Rule:
    """Return the rule that a model has exactly one of these fields, by their JSON names."""
    names, has = {*map(to_snake, fields)}, ", ".join(f"has(self.{field})" for field in fields)
    return Rule(
        f"[{has}].filter(x, x).size() == 1",
        lambda self: len(self.model_fields_set & names) == 1,
        f"must set exactly one of {', '.join(fields)}",
    )


def not_both(one: str, other: str) -> Rule:
    """Return the rule that a model does not have both fields, by their JSON names."""
    names = {to_snake(one), to_snake(other)}
    return Rule(
        f"!(has(self.{one}) && has(self.{other}))",
        lambda self: not names <= self.model_fields_set,
        f"{one} and {other} exclude each other",
    )


def unique(key: str) -> Checked:
    """Return the annotation of a list whose items differ in this field: `listType: map`."""
    name = to_snake(key)

    def duplicates(items: list[Any]) -> Iterator[Broken]:
        seen = set()
        for position, item in enumerate(items):
            if (value := getattr(item, name)) in seen:
                yield Broken(f"duplicate {key}", f"[{position}].{key}")
            seen.add(value)

    return Checked(
        duplicates, {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    )
