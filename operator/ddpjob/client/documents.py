"""Reads and writes job files: YAML or JSON, with one or several documents. Errors name the line."""

import codecs
import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from sys import float_info
from typing import Any

import yaml

from ddpjob.client.json_text import read_value, skip_blanks
from ddpjob.errors import InvalidJob
from ddpjob.text import printable_lines

# An API server takes 3 MB in one request.
MAX_BYTES = 16 * 1024 * 1024
# Nodes of a document, with aliases followed. Nine lines can stand for a billion.
MAX_NODES = 100_000

# The marks with which a file may begin, and the encoding of what follows.
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}

_BOOLS = {"y": True, "yes": True, "on": True, "true": True}
_BOOLS |= {"n": False, "no": False, "off": False, "false": False}
_INTEGER = r"[-+]?(0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*)"
_FLOAT = r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?"


class _Loader(yaml.SafeLoader):
    """A loader that reads YAML as kubectl and the API server do.

    They mix YAML 1.1 and 1.2 in another way than PyYAML. `1e-3` is a number and `1:30` a text,
    `2.0` is the integer 2, `y` is true, a date is a text, and no key may appear twice.
    """

    _nodes = 0

    def get_event(self) -> Any:
        """Return the next event, and count the nodes of a document while it is read.

        A node takes far more memory than its text, so what is too large is not read to its end.
        """
        event = super().get_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.DocumentStartEvent):
            self._nodes = 0
        elif isinstance(event, yaml.NodeEvent):
            self._nodes += 1
            if self._nodes > MAX_NODES:
                raise _too_large(event)
        return event

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        items = {}
        for key, value in node.value:
            name = self._key(key)
            if name in items:
                line = key.start_mark.line + 1
                raise InvalidJob(f"line {line}", f"duplicate key {name!r}")
            items[name] = key, value
        node.value = list(items.values())
        return node

    def _key(self, node: yaml.Node) -> str:
        """Return the key as JSON has it, where all keys are texts. The node becomes a text too."""
        if not isinstance(node, yaml.ScalarNode) or node.tag == _tag("null"):
            raise _misread("a key must be a text", node)
        if node.tag != _tag("merge"):
            found = self.construct_object(node)
            del self.constructed_objects[node]
            node.tag = _tag("str")
            node.value = str(found).lower() if isinstance(found, bool) else str(found)
        return str(node.value)

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """Return a number: an integer if Go would write it as one, such as 2.0 and 1e3."""
        text = str(self.construct_scalar(node))
        plain = text.replace("_", "")
        is_octal = re.fullmatch(r"[-+]?0[0-7]+", plain)
        try:
            number: float = int(plain, 8 if is_octal else 0)
        except ValueError:
            number = _float(plain, node)
        if not abs(number) <= float_info.max:
            return text  # too large for a number
        if not -(2**63) <= number < 2**64:
            return float(number)
        return int(number) if number == int(number) else number

    def construct_bool(self, node: yaml.ScalarNode) -> bool:
        """Return the boolean that one of its names stands for."""
        try:
            return _BOOLS[str(self.construct_scalar(node)).lower()]
        except KeyError:
            raise _misread("not a boolean", node) from None

    def refuse_number(self, node: yaml.ScalarNode) -> Any:
        """Refuse infinity and NaN."""
        raise _misread("JSON has no such number", node)


def _tag(name: str) -> str:
    return f"tag:yaml.org,2002:{name}"


def _float(text: str, node: yaml.Node) -> float:
    try:
        return float(text)
    except ValueError:
        raise _misread("not a number", node) from None


def _misread(problem: str, where: yaml.Node | yaml.Event) -> yaml.MarkedYAMLError:
    mark: Any = where.start_mark
    return yaml.constructor.ConstructorError(None, None, problem, mark)


def _too_large(where: yaml.Node | yaml.Event) -> yaml.MarkedYAMLError:
    return _misread(f"more than {MAX_NODES} items, aliases followed", where)


# What text without quotes stands for, and the tags that a file may name.
_Loader.yaml_implicit_resolvers = {}
_Loader.yaml_constructors = {
    tag: yaml.SafeLoader.yaml_constructors[tag]
    for tag in (*map(_tag, ("null", "str", "seq", "map")), None)
}
_Loader.add_constructor(_tag("bool"), _Loader.construct_bool)
_Loader.add_constructor(_tag("int"), _Loader.construct_number)
_Loader.add_constructor(_tag("float"), _Loader.construct_number)
_Loader.add_constructor("!infinity", _Loader.refuse_number)
for _name, _pattern, _first in (
    (_tag("bool"), "|".join(f"{b}|{b.title()}|{b.upper()}" for b in _BOOLS), "yYnNtTfFoO"),
    (_tag("null"), r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_tag("merge"), r"<<", "<"),
    (_tag("float"), f"{_INTEGER}|{_FLOAT}", "-+.0123456789"),
    ("!infinity", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
):
    _Loader.add_implicit_resolver(_name, re.compile(f"^(?:{_pattern})$(?!\n)"), list(_first))


def documents(path: str) -> Iterator[Any]:
    """Yield the objects in the file as kubectl reads them; `-` is standard input.

    Empty documents are left out, and the items of a List are yielded one by one. Raises InvalidJob
    if the file cannot be read, or is neither YAML nor JSON.
    """
    try:
        for document in _parsed(_text(path)):
            if document is not None:
                yield from _items(document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "(file)"
        raise InvalidJob(where, f"not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InvalidJob("(file)", f"not YAML: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise InvalidJob("(file)", f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidJob(f"byte {error.start}", "not YAML: must be text in UTF-8") from None
    except RecursionError:
        raise InvalidJob("(file)", "must not be nested so deeply") from None


def _text(path: str) -> str:
    """Return the text of the file. Like kubectl, this takes UTF-16 if it begins with a mark."""
    with contextlib.ExitStack() as opened:
        file = sys.stdin.buffer if path == "-" else opened.enter_context(Path(path).open("rb"))
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InvalidJob("(file)", f"must be at most {MAX_BYTES} bytes, is larger")
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            return content.removeprefix(mark).decode(encoding)
    return content.decode()


def _parsed(text: str) -> Iterator[Any]:
    """Yield the documents of a text as kubectl takes it apart.

    If it begins with a brace, it is JSON values one after another, for as long as they can be read.
    After one value, or none, the rest may be YAML: `{"a": 1,}` is.
    """
    count, end, problem = 0, 0, None
    if text.lstrip().startswith("{"):
        try:
            while (start := skip_blanks(text, end)) < len(text):
                value, end = read_value(text, start)
                count += 1
                yield value
            return
        except json.JSONDecodeError as error:
            problem = InvalidJob(
                f"line {error.lineno}, column {error.colno}", f"not JSON: {error.msg}"
            )
            if count > 1:
                raise problem from None
    try:
        # Blanks in place of what has been read, so that errors name the file's own lines.
        yield from _documents_of_yaml(re.sub(r"[^\n]", " ", text[:end]) + text[end:])
    except yaml.MarkedYAMLError:
        if problem is None:
            raise
        raise problem from None


def _documents_of_yaml(text: str) -> Iterator[Any]:
    loader = _Loader(text)
    while loader.check_node():
        node = loader.get_node()
        assert node is not None
        _size(node, {})
        yield loader.construct_document(node)


def _items(document: Any) -> Iterator[Any]:
    """Yield the items of a List, such as `kubectl get -o json` prints, or the document itself."""
    kind = str(document.get("kind")) if isinstance(document, dict) else ""
    items = document.get("items") if kind.endswith("List") else None
    if not isinstance(items, list):
        yield document
        return
    inherited = {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List")}
    for item in items:
        is_bare = isinstance(item, dict) and not item.keys() & inherited.keys()
        yield inherited | item if is_bare else item


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of nodes in this node. Raises MarkedYAMLError if there are too many."""
    if id(node) not in known:
        known[id(node)] = MAX_NODES  # until it is counted, so that a loop is too large
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        below = (item for part in parts for item in (part if isinstance(part, tuple) else (part,)))
        known[id(node)] = 1 + sum(_size(item, known) for item in below)
        if known[id(node)] > MAX_NODES:
            raise _too_large(node)
    return known[id(node)]


# What YAML 1.1 takes for something else than a text.
_YAML_1_1 = yaml.SafeLoader.yaml_implicit_resolvers


class _Dumper(yaml.SafeDumper):
    """A dumper of what `documents` reads: without anchors, and with long texts as they are."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Return a text: over several lines if it has several, quoted if YAML 1.1 misreads it."""
        style = "|" if "\n" in text else None
        if any(pattern.match(text) for _, pattern in _YAML_1_1.get(text[:1], ())):
            style = "'"
        return self.represent_scalar(_tag("str"), text, style=style)

    def represent_number(self, number: float) -> yaml.ScalarNode:
        """Return a number, with the tag that the loader has for all numbers."""
        return self.represent_scalar(_tag("float"), repr(number))

    def represent_items(self, items: list[Any]) -> yaml.SequenceNode:
        """Return a list, in one line if it has nothing but numbers."""
        numbers = bool(items) and all(type(item) is int for item in items)
        return self.represent_sequence(_tag("seq"), items, flow_style=numbers)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(int, _Dumper.represent_number)
_Dumper.add_representer(float, _Dumper.represent_number)
_Dumper.add_representer(list, _Dumper.represent_items)


def to_yaml(body: dict[str, Any]) -> str:
    """Return `body` as YAML, from which kubectl and `documents` read the same again.

    It is in ASCII if there are invisible characters in it, which are escaped then.
    """
    options: dict[str, Any] = {"Dumper": _Dumper, "sort_keys": False, "width": 100}
    text: str = yaml.dump(body, allow_unicode=True, **options)
    return text if printable_lines(text) == text else yaml.dump(body, **options)
