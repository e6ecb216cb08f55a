"""Plans of faults on a real API server: known ones, and others by a seed that is printed."""

import os
from contextlib import AsyncExitStack
from itertools import islice

import pytest

from tests.chaos.campaign import Campaign, known_plans, site
from tests.chaos.faults import KINDS
from tests.chaos.plan import Plan
from tests.chaos.run import BY_NAME
from tests.chaos.suites import plans
from tests.cluster.tiers import skipping_where_unavailable
from tests.depths import sources_hash

SECONDS = float(os.environ.get("CHAOS_SECONDS", "120"))
WRITES = dict.fromkeys(BY_NAME, 12)
SEED = int(os.environ.get("CHAOS_SEED") or sources_hash())


def test_a_plan_is_a_line_and_a_line_a_plan() -> None:
    for plan in islice(plans(1, WRITES), 2000):
        assert Plan.parse(str(plan)) == plan
    assert all(Plan.parse(str(plan)) == plan for plan in known_plans())


def test_a_seed_draws_every_kind_of_fault_and_always_the_same() -> None:
    drawn, again = (list(islice(plans(3, WRITES), 6000)) for _ in range(2))
    assert drawn == again
    found = {(fault.where, fault.kind) for plan in drawn for fault in plan.faults}
    assert found == {(where, kind) for where, kinds in KINDS.items() for kind in kinds}
    assert {plan.workload for plan in drawn} == set(BY_NAME)


@pytest.mark.deep
@pytest.mark.timeout(1800)
async def test_no_plan_breaks_a_promise(capsys: pytest.CaptureFixture[str]) -> None:
    """Sampled for CHAOS_SECONDS, by the sources' hash or CHAOS_SEED."""
    async with AsyncExitStack() as stack:
        with skipping_where_unavailable():
            opened = await stack.enter_async_context(site())
        campaign = Campaign(opened)
        await campaign.sample(SEED, SECONDS, known=known_plans())
    with capsys.disabled():
        print(f"\nseed {SEED}: {campaign.figures}")
    wrong = [f"make chaos PLAN='{v.plan}'\n{v}" for v in campaign.failures]
    assert not wrong, f"seed {SEED}\n" + "\n".join(wrong)
    assert campaign.figures.jobs > len(known_plans())
