"""Plans of faults on a real API server: known ones, and others by a seed that is printed."""

import os
from itertools import islice

import pytest

from tests.chaos.campaign import Campaign, known_plans, shrink, site
from tests.chaos.faults import KINDS, VIEW, WATCH, Fault
from tests.chaos.plan import Plan
from tests.chaos.run import BY_NAME, Verdict
from tests.chaos.suites import WRITES, pairs, plans
from tests.cluster.tiers import skipping_where_unavailable
from tests.depths import sources_hash

SECONDS = float(os.environ.get("CHAOS_SECONDS", "120"))
SEED = int(os.environ.get("CHAOS_SEED") or sources_hash())


def test_a_plan_is_a_line_and_a_line_a_plan() -> None:
    for source in (plans(1), pairs(1)):
        for _, plan in islice(source, 2000):
            assert Plan.parse(str(plan)) == plan
    assert all(Plan.parse(str(plan)) == plan for plan in known_plans())


@pytest.mark.parametrize(
    "line",
    ["", "x", "x: write 1", "x: write 0 delay", "x: write 1 gone", "x: watch 1 gone"]
    + [
        "x: watch services 1 gone",
        "x: write pods 1 delay",
        "x x3: write 1 delay",
        "x: view 1 late",
    ],
)
def test_what_is_no_plan_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="no plan|no fault|no such fault"):
        Plan.parse(line)


def test_a_seed_has_the_same_plans_always_and_another_seed_has_others() -> None:
    first, again, other = (list(islice(plans(seed), 300)) for seed in (1, 1, 2))
    assert first == again and first != other


def test_every_kind_of_fault_is_in_some_plan() -> None:
    drawn = [plan for source in (plans(3), pairs(3)) for _, plan in islice(source, 3000)]
    found = {(fault.where, fault.kind) for plan in drawn for fault in plan.faults}
    assert found == {(where, kind) for where, kinds in KINDS.items() for kind in kinds}
    assert {plan.workload for plan in drawn} == set(WRITES) == set(BY_NAME)


def test_the_embedded_cluster_has_no_names_of_its_own_for_what_a_watch_does() -> None:
    assert set(VIEW) < set(WATCH)


async def test_a_failing_plan_shrinks_to_the_fault_that_it_takes() -> None:
    culprits = {Fault("write", 3, "reset"), Fault("watch", 2, "gone", "pods")}
    tried = []

    async def fails(plan: Plan) -> Verdict | None:
        tried.append(plan)
        wrong = culprits <= set(plan.faults)
        return Verdict(plan, ("I1: twice",), (), 0, "") if wrong else None

    line = "succeeds x2: list pods 1 html, watch pods 2 gone, write 3 reset, write 9 delay"
    found = await shrink(Plan.parse(line), fails)
    assert found is not None and set(found.plan.faults) == culprits
    assert found.plan.operators == 1 and len(tried) < 20


async def test_a_plan_that_does_not_fail_again_is_not_shrunk() -> None:
    async def fails(plan: Plan) -> Verdict | None:
        return None

    assert await shrink(Plan.parse("succeeds: write 3 reset"), fails) is None


@pytest.mark.deep
@pytest.mark.timeout(1800)
async def test_no_plan_breaks_a_promise(capsys: pytest.CaptureFixture[str]) -> None:
    """Sampled for CHAOS_SECONDS; the same sources have the same plans, CHAOS_SEED others."""
    with skipping_where_unavailable():
        place = site()
        opened = await place.__aenter__()
    try:
        campaign = Campaign(opened)
        await campaign.sample(SEED, SECONDS, known=known_plans())
        with capsys.disabled():
            print(f"\nseed {SEED}: {campaign.figures}")
        wrong = [await campaign.explain(verdict) for verdict in campaign.failures]
    finally:
        await place.__aexit__(None, None, None)
    assert not wrong, f"seed {SEED}\n" + "\n".join(wrong)
    assert campaign.figures.suites.keys() >= set("ABCDEG")
