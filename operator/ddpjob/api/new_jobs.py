"""The rules that a new job must keep, and that a stored one may break.

The operator reads stored jobs, and must not stop at one that is older than a rule. So parsing does
not check these rules. A rule of `failurePolicy` that breaks one of them fits no failure.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ddpjob.api.failure_policy import FailurePolicy, FailureRule, broken_expressions, fits_nothing
from ddpjob.api.spec import Spec
from ddpjob.api.unjudged import broken_fields, partial
from ddpjob.errors import InvalidJob

# The fields of the spec from which the number of ranks follows.
_WORLD = ("nnodes", "nprocPerNode", "resources")


def problems_of(policy: FailurePolicy, world_size: int | None) -> list[InvalidJob]:
    """Return an InvalidJob for each part of `policy` that breaks a rule of new jobs.

    Ranks are not checked if `world_size` is None.
    """
    return [*fits_nothing(policy, world_size), *broken_expressions(policy)]


def problems_beside(error: ValidationError, spec: Any) -> list[InvalidJob]:
    """Return the same for the `spec` of a job in which `error` has found something else."""
    if not isinstance(spec, Mapping):
        return []
    world_size = None
    if not broken_fields(error, "spec") & {*_WORLD}:
        found = {name: spec[name] for name in _WORLD if name in spec}
        world_size = partial(Spec, found, frozenset()).world_size
    policy = spec.get("failurePolicy")
    rules = policy.get("rules") if isinstance(policy, Mapping) else None
    read = [_rule(rule) for rule in rules] if isinstance(rules, list) else []
    return problems_of(FailurePolicy.model_construct(rules=read), world_size)


def _rule(rule: Any) -> FailureRule:
    """Return the rule with those of its fields that are right."""
    try:
        return FailureRule.model_validate(rule)
    except ValidationError as error:
        found = rule if isinstance(rule, Mapping) else {}
        return partial(FailureRule, found, broken_fields(error))
