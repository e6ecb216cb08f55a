"""Label selectors, read as the API server reads them."""

import re
from collections.abc import Callable, Mapping

from ddpjob.errors import cluster_error

Selector = Callable[[Mapping[str, str]], bool]

# A comma between requirements, not one between values in parentheses.
_COMMA = re.compile(r",(?![^(]*\))")
_REQUIREMENT = re.compile(
    r"(?P<absent>!)?(?P<key>[\w./-]+)"
    r"(?:\s*(?P<operator>==|=|!=)\s*(?P<value>[\w.-]*)|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?"
)


def parse_selector(text: str) -> Selector:
    """Return a function that tests labels by a selector such as `a=b,c!=d,e,!f,g in (h,i)`.

    Raises Refused (400) for a selector that cannot be read.
    """
    requirements = [_parse(part.strip()) for part in _COMMA.split(text)] if text.strip() else []
    return lambda labels: all(holds(labels) for holds in requirements)


def _parse(text: str) -> Selector:
    match = _REQUIREMENT.fullmatch(text)
    if match is None or (match["absent"] and (match["operator"] or match["set"])):
        raise cluster_error(400, "BadRequest", f"labelSelector: cannot read {text!r}")
    key = match["key"]
    if not match["operator"] and not match["set"]:
        return lambda labels: (key in labels) is not bool(match["absent"])
    values = match["values"].split(",") if match["set"] else [match["value"]]
    wanted = {value.strip() for value in values}
    if match["operator"] == "!=" or match["set"] == "notin":
        return lambda labels: labels.get(key) not in wanted
    return lambda labels: labels.get(key) in wanted
