"""A script runs the same whether it is forked from a process that has torch, or started cold.

Each case runs in a warm pod and in a cold one, and must print and leave the same. These differences
cannot be avoided, and no case shows them:

- Modules are in `sys.modules` before the script imports them, with what they did as they were
  imported: filters of `warnings` (sympy's, and torch's before the script's own), loggers,
  extension modules in faulthandler's list.
- Frames of the agent and of runpy stand below the script's first one: in `inspect.stack()`, in
  `traceback.print_stack()`, in faulthandler's stacks, and where a `sys.excepthook` of the script's
  own fails. So a recursion has five frames less, and a warning with `stacklevel=2` at the top level
  names the agent.
- Ranks of a pod share the seed of `hash(str)`.
- The collector does not look at what was there before the script (`gc.freeze`).
"""

import json
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from tests import agentpod
from tests.trainer.warm_bench import Bench, Ended
from tests.trainer.warm_cases import CASES, RANDOM, SEEN

pytestmark = [
    pytest.mark.deep(turn=1),  # together, as they share what is dear
    pytest.mark.timeout(1000),  # which comes first, and takes some minutes on a busy machine
]

OBSERVED = [name for name in SEEN if name.startswith("seen")]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """All cases, run in a warm pod and in a cold one."""
    with agentpod.pods(tmp_path_factory.mktemp("bench")) as pods:
        bench = Bench(pods, CASES)
        bench.collect()
        yield bench


def both(bench: Bench, name: str) -> tuple[Ended, Ended]:
    """How a case ended, warm and cold; each was started as it should be."""
    warm, cold = (bench.ended[kind][name] for kind in ("warm", "cold"))
    case = CASES[name]
    assert cold.is_cold and not cold.said
    assert warm.is_cold == bool(case.cold), warm.said
    if case.cold in ("", "-"):
        assert not warm.said
    else:
        (line,) = warm.said.splitlines()
        assert line.startswith("ddpjob-agent: cold start: ") and case.cold in line
    return warm, cold


def observed(ended: Ended) -> dict[str, object]:
    """The observations that a case has printed."""
    return dict(map(json.loads, ended.output.splitlines()))


@pytest.mark.parametrize("name", [name for name in CASES if name not in [*OBSERVED, *RANDOM]])
def test_a_script_prints_and_ends_as_if_it_had_started_cold(bench: Bench, name: str) -> None:
    warm, cold = both(bench, name)
    assert warm.output == cold.output
    assert (warm.code, warm.records) == (cold.code, cold.records)
    assert cold.code == CASES[name].code, cold.output
    assert CASES[name].told in cold.output


@pytest.mark.parametrize("name", OBSERVED)
def test_a_process_looks_as_if_it_had_started_cold(bench: Bench, name: str) -> None:
    warm, cold = map(observed, both(bench, name))
    assert (warm.pop("modules"), cold.pop("modules")) == (True, False)
    assert len(cold) > 35
    for key in cold:
        assert warm[key] == cold[key], key
    assert warm.keys() == cold.keys()


def test_no_two_ranks_draw_the_same_numbers_by_themselves(bench: Bench) -> None:
    """Neither do two cold ones, torch's included: its seed is drawn in each process."""
    drawn, equal = [], []
    for name in RANDOM:
        for ended in both(bench, name):
            numbers, same = json.loads(ended.output)
            drawn.append(numbers)
            equal.append(same)
    for key in drawn[0]:
        assert len({numbers[key] for numbers in drawn}) == len(drawn) == 4, key
    assert all(same == equal[0] for same in equal)
