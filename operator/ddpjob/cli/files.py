"""Reads job files: YAML or JSON, one or several documents, with the place of what is wrong."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ddpjob.errors import InvalidJob


class _Loader(yaml.SafeLoader):
    """YAML as the API server understands it: no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                raise InvalidJob(f"line {line}", f"the key {key.value!r} stands here twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


# Only true and false are booleans, and dates are text, as in Kubernetes' YAML (which is YAML 1.2 in
# this).
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def documents(path: str) -> Iterator[Any]:
    """The documents in the file, `-` for standard input; empty ones are left out.

    Raises InvalidJob where the file is no YAML, OSError where it cannot be read.
    """
    text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    try:
        for document in yaml.load_all(text, Loader=_Loader):  # a subclass of SafeLoader
            if document is not None:
                yield document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "(file)"
        raise InvalidJob(where, f"no YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InvalidJob("(file)", f"no YAML: {error}") from None
