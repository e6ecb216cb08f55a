"""Objects as YAML, as people read it."""

from functools import partial
from typing import Any

import yaml


class _Plain(yaml.SafeDumper):
    """A dumper without anchors, so that a reader need not follow them."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def as_yaml(value: Any, *, ascii_only: bool = False) -> str:
    """Return the value as a YAML document. With `ascii_only`, all other characters are escaped."""
    dump = partial(yaml.dump, Dumper=_Plain, sort_keys=False, width=100)
    return str(dump(value, allow_unicode=not ascii_only))
