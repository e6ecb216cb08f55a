"""Every field of the definition has a description, and each is whole sentences."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from ddpjob.api.crd import crd

Schema = dict[str, Any]
VERSION = crd()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def described(schema: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, description) of this part of the schema and of all parts below it."""
    if "description" in schema:
        yield path or "DDPJob", schema["description"]
    for name, part in schema.get("properties", {}).items():
        yield from described(part, f"{path}.{name}".lstrip("."))
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from described(schema[key], path + mark)


def test_every_description_begins_and_ends_as_a_sentence() -> None:
    columns = {c["name"]: c["description"] for c in VERSION["additionalPrinterColumns"]}
    texts = {**dict(described(SCHEMA)), **columns}
    assert len(texts) > 250
    sentence = re.compile(r"[A-Z0-9`].*[^,;: ][.]", re.DOTALL)
    assert {path: text for path, text in texts.items() if not sentence.fullmatch(text)} == {}


@pytest.mark.parametrize("section", ["spec", "status"])
def test_every_field_of_ours_has_a_description(section: str) -> None:
    fields = SCHEMA["properties"][section]["properties"]
    bare = [name for name, field in fields.items() if "description" not in field]
    for part in fields.values() if section == "status" else ():
        inner = part.get("items", part).get("properties", {})
        bare += [name for name, field in inner.items() if "description" not in field]
    assert bare == []
