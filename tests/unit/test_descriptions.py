"""Every description of the definition is whole sentences, because each is printed alone."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from ddpjob.api.crd import crd

# The finite verbs of the descriptions. A description that needs another one adds it here.
VERBS = {
    *("is", "are", "has", "have", "may", "must", "cannot", "does", "do", "adds", "allows", "asks"),
    *("become", "becomes", "begin", "chooses", "come", "comes", "counts", "creates", "decides"),
    *("deletes", "describes", "divides", "end", "ends", "fail", "fails", "fit", "fits", "follow"),
    *("gets", "grow", "holds", "includes", "keeps", "lets", "mount", "mounts", "names", "needs"),
    *("overrides", "proves", "replaces", "runs", "sees", "sets", "start", "starts", "stays"),
    *("turns", "waits"),
}
Schema = dict[str, Any]


def described(schema: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, description) of this part of the schema and of all parts below it."""
    if "description" in schema:
        yield path or "DDPJob", schema["description"]
    for name, part in schema.get("properties", {}).items():
        yield from described(part, f"{path}.{name}".lstrip("."))
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from described(schema[key], path + mark)


def sentences(text: str) -> list[str]:
    """The sentences of a description. A dot within backticks ends none."""
    bare = re.sub(r"`[^`]*`", lambda quoted: quoted[0].replace(".", ""), text)
    return re.split(r"(?<=[.]) ", bare)


def faults(text: str) -> list[str]:
    """What keeps the description from being whole sentences."""
    found = [] if text.endswith(".") else ["ends without a full stop"]
    for sentence in sentences(text):
        words = re.findall(r"[\w']+", re.sub(r"`[^`]*`|\([^)]*\)", "", sentence))
        if not re.match(r"[A-Z0-9`]", sentence):
            found.append(f"begins with a small letter: {sentence}")
        if not VERBS & {*words}:
            found.append(f"has no verb: {sentence}")
        if re.search(r"(,|;|:|\band|\bor)\W*$", sentence):
            found.append(f"ends in the middle: {sentence}")
    return found


VERSION = crd()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def test_every_description_is_made_of_whole_sentences() -> None:
    columns = {c["name"]: c["description"] for c in VERSION["additionalPrinterColumns"]}
    texts = {**dict(described(SCHEMA)), **columns}
    assert len(texts) > 250
    assert {path: found for path, text in texts.items() if (found := faults(text))} == {}


@pytest.mark.parametrize(
    "fragment",
    [
        "The first that was seen, and",
        "the last.",
        "As in a pod.",
        "Of its failure, or `Succeeded`.",
        "`nnodes` is the number of nodes",
        "`nnodes` is the number of nodes. Each node one pod.",
        "`is` the number of nodes.",
        "`step` is the last step,.",
    ],
)
def test_a_fragment_is_found(fragment: str) -> None:
    assert faults(fragment)


@pytest.mark.parametrize("section", ["spec", "status"])
def test_every_field_of_ours_has_a_description(section: str) -> None:
    fields = SCHEMA["properties"][section]["properties"]
    bare = [name for name, field in fields.items() if "description" not in field]
    for part in fields.values() if section == "status" else ():
        inner = part.get("items", part).get("properties", {})
        bare += [name for name, field in inner.items() if "description" not in field]
    assert bare == []


def test_a_description_names_its_own_field() -> None:
    """One that was copied names another one."""
    named = re.compile(r"`(\w+)` (is|are|has|holds|names|decides|describes|counts) ")
    wrong = {}
    for path, text in described(SCHEMA):
        field = re.split(r"[.]", path.rstrip("[]{}"))[-1]
        if (found := named.match(text)) and found[1] != field and not path.endswith("[]"):
            wrong[path] = text
    assert wrong == {}
