"""Each fault at every write of every workload: nothing is lost, and nothing happens twice."""

import asyncio
import json
from difflib import unified_diff

import pytest

from tests.chaos.embedded import Run, run
from tests.chaos.faults import EMBEDDED, Fault
from tests.chaos.workloads import QUEUES, SILENCES, WORKLOADS, Workload

QUICK = ("fails-once", "fails-in-place")
AT_ONCE = 12  # runs beside each other: most of a run's time is waiting for quiet


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(workload, marks=() if workload.name in QUICK else pytest.mark.deep)
        for workload in (*WORKLOADS, *QUEUES, *SILENCES)
    ],
    ids=lambda workload: str(workload.name),
)
async def test_a_fault_at_any_write_changes_nothing(workload: Workload) -> None:
    reference = await run(workload, None)
    assert reference.breaches == [] and reference.writes >= 7
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(fault: Fault) -> str:
        async with slots:
            return await judge(workload, fault, reference)

    faults = [
        Fault(where, number, kind)
        for number in range(workload.first, reference.writes + 1)
        for where, kinds in EMBEDDED.items()
        for kind in kinds
    ]
    wrong = list(filter(None, await asyncio.gather(*map(one, faults))))
    assert not wrong, f"{len(wrong)} of {len(faults)}\n" + "\n".join(wrong[:3])


async def judge(workload: Workload, fault: Fault, reference: Run) -> str:
    """What is wrong with a run that has this fault; empty if nothing is."""
    where = f"{workload.name}, {fault}"
    try:
        found = await run(workload, fault)
    except TimeoutError:
        return f"{where}: it never came to its end"
    if found.breaches:
        return f"{where}: {'; '.join(found.breaches)}"
    if found.end == reference.end or workload.anew and json.loads(found.end)[0]["attempt"]:
        return ""
    before, after = reference.end.splitlines(), found.end.splitlines()
    return "\n".join([f"{where}:", *unified_diff(before, after, n=0, lineterm="")])
