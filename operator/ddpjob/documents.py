"""Reads and writes job files: YAML or JSON, with one or several documents. Errors name the line."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ddpjob import why
from ddpjob.errors import InvalidJob
from ddpjob.text import printable_lines

_TAG = "tag:yaml.org,2002:"
_NOT_BLANK = re.compile(r"\S")


class _Loader(yaml.SafeLoader):
    """PyYAML's loader, for which a plain scalar is what it is for kubectl.

    `1e-3` is a number and `y` a boolean. Dates and `12:30` are texts.
    """

    bool_values = yaml.SafeLoader.bool_values | {"y": True, "n": False}
    yaml_implicit_resolvers = {
        first: [each for each in known if each[0] in (f"{_TAG}bool", f"{_TAG}null", f"{_TAG}merge")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return a mapping whose keys are texts, as in JSON. Raises InvalidJob for equal keys."""
        node = super().compose_mapping_node(anchor)
        names = set[str]()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.tag != f"{_TAG}merge":
                key.tag = f"{_TAG}str"
            if key.value in names:
                line = key.start_mark.line + 1
                raise InvalidJob(f"line {line}", f"duplicate key {key.value!r}")
            names.add(key.value)
        return node


class _Dumper(yaml.SafeDumper):
    """A dumper of what `documents` reads: without anchors, and with long texts as they are.

    A text that PyYAML or kubectl would take for something else is quoted.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Return a text, over several lines if it has several."""
        return self.represent_scalar(f"{_TAG}str", text, style="|" if "\n" in text else None)

    def represent_items(self, items: list[Any]) -> yaml.SequenceNode:
        """Return a list, in one line if it has nothing but numbers."""
        numbers = bool(items) and all(type(item) is int for item in items)
        return self.represent_sequence(f"{_TAG}seq", items, flow_style=numbers)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(list, _Dumper.represent_items)

for _class, _name, _pattern, _first in (
    (_Loader, "bool", r"[yYnN]", "yYnN"),
    (_Loader, "int", r"[-+]?(0b[01]+|0x[0-9a-fA-F]+|0o?[0-7]+|0|[1-9][0-9_]*)", "-+0123456789"),
    (_Loader, "float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    (_Dumper, "bool", r"[yYnN]", "yYnN"),
    (_Dumper, "float", r"[-+]?(0[xXoObB]\w*|[0-9._]+([eE][-+]?[0-9._]+)?)", "-+.0123456789"),
):
    _class.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"^(?:{_pattern})$"), list(_first))


def documents(path: str) -> Iterator[Any]:
    """Yield the objects in the file; `-` is standard input.

    A file that begins with a brace is JSON, with one value or several. Empty documents are left
    out, and the items of a List are yielded one by one. Raises InvalidJob if the file cannot be
    read, or is neither YAML nor JSON.
    """
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        text = content.decode("utf-8-sig")
        is_json = text.lstrip().startswith("{")
        for document in _json_values(text) if is_json else yaml.load_all(text, _Loader):
            if document is not None:
                yield from _items(document)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidJob(where, f"not JSON: {error.msg}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "(file)"
        raise InvalidJob(where, f"not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InvalidJob("(file)", f"not YAML: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise InvalidJob("(file)", f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidJob(f"byte {error.start}", "must be text in UTF-8") from None


def _json_values(text: str) -> Iterator[Any]:
    """Yield the JSON values, which stand one after another."""
    decoder, end = json.JSONDecoder(object_pairs_hook=_with_unequal_keys), 0
    while begin := _NOT_BLANK.search(text, end):
        try:
            value, end = decoder.raw_decode(text, begin.start())
        except KeyError as error:
            line = text.count("\n", 0, begin.start()) + 1
            raise InvalidJob(f"JSON from line {line}", f"duplicate key {error}") from None
        yield value


def _with_unequal_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Raises KeyError with a key that it has twice."""
    if len(found := dict(pairs)) < len(pairs):
        raise KeyError(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return found


def _items(document: Any) -> list[Any]:
    """Return the items of a List, such as `kubectl get -o json` prints, or the document itself."""
    items = why.part(document, "items")
    is_list = why.text(document, "kind").endswith("List") and isinstance(items, list)
    return items if is_list else [document]


def to_yaml(body: dict[str, Any]) -> str:
    """Return `body` as YAML, from which kubectl and `documents` read the same again.

    It is in ASCII if there are invisible characters in it, which are escaped then.
    """
    options: dict[str, Any] = {"Dumper": _Dumper, "sort_keys": False, "width": 100}
    text: str = yaml.dump(body, allow_unicode=True, **options)
    return text if printable_lines(text) == text else yaml.dump(body, **options)
