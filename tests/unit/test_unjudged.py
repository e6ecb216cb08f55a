"""Rules over several fields of a model that has a broken field."""

from random import Random
from typing import Any

from ddpjob.api import validate
from tests.builders import job_object
from tests.fuzz import fuzzed_job


def paths(**spec: Any) -> list[str]:
    """The fields that `validate` names, below spec."""
    return [p.path.removeprefix("spec.") for p in validate(job_object(**spec))]


def test_rules_that_read_a_broken_field_are_not_judged() -> None:
    assert paths(args=[]) == ["args"]
    assert paths(args="train.py") == ["args"]  # not a list, so nobody knows whether it begins well
    assert paths(args=[], launcher="horovod") == ["launcher"]
    assert paths(args=[], command="sh") == ["command"]
    ranks = {"rules": [{"onRanks": [9], "action": "FailJob"}]}
    assert paths(failurePolicy=ranks) == ["failurePolicy.rules[0].onRanks[0]"]
    assert paths(failurePolicy=ranks, nnodes="two") == ["nnodes"]
    assert paths(failurePolicy=ranks, resources=[]) == ["resources"]


def test_a_misspelt_field_is_not_missed_too() -> None:
    rule = {"onExitCode": [3], "action": "FailJob"}
    assert paths(failurePolicy={"rules": [rule]}) == ["failurePolicy.rules[0].onExitCode"]
    volume = {"name": "a", "emptydir": {}}
    assert paths(volumes=[volume]) == ["volumes[0].emptydir"]
    assert paths(volumes=[volume | {"name": "ddpjob-a"}])[-1] == "volumes[0].name"


def test_a_rule_of_failure_policy_is_judged_by_its_right_fields() -> None:
    rules = [
        {"action": "Retry", "onSignals": ["SIGFOO"]},
        {"action": "FailJob", "onMessagePattern": "(", "onExitCodes": [0]},
        3,
    ]
    assert paths(failurePolicy={"maxRestarts": -1, "rules": rules}) == [
        "failurePolicy.maxRestarts",
        "failurePolicy.rules[0].action",
        "failurePolicy.rules[1].onExitCodes[0]",
        "failurePolicy.rules[2]",
        "failurePolicy.rules[0].onSignals[0]",
        "failurePolicy.rules[1].onMessagePattern",
    ]


ODD: tuple[Any, ...] = (None, 0, -1, "x", True, [], [[]], {}, [{}], {"a": 1}, [None], "/", 1.5)


def broken(value: Any, random: Random) -> Any:
    """`value` with odd parts in some places, and others left out."""
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if random.random() > 0.05}
        return {name: broken(part, random) for name, part in kept.items()}
    if isinstance(value, list):
        return [broken(part, random) for part in value]
    return random.choice(ODD) if random.random() < 0.1 else value


def test_whatever_is_broken_the_rest_is_judged_without_an_exception() -> None:
    for number in range(600):
        job = fuzzed_job(number)
        problems = validate(job | {"spec": broken(job["spec"], Random(number))})
        assert len({str(problem) for problem in problems}) == len(problems), number
