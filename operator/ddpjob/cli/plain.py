"""Objects as YAML, as people read it."""

from typing import Any

import yaml


class _Plain(yaml.SafeDumper):
    """A dumper without anchors, so that a reader need not follow them."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def as_yaml(value: Any) -> str:
    """Return the value as a YAML document."""
    dump = yaml.dump(value, Dumper=_Plain, sort_keys=False, width=100, allow_unicode=True)
    return str(dump)
