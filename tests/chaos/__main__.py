"""`python -m tests.chaos`: fault plans on a real API server, for as long as one likes.

Exit codes: 0 nothing was wrong, 1 something was; its plan is printed as one line.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence

from tests.chaos.campaign import Campaign, Figures, site
from tests.chaos.plan import Plan

ROUND_SECONDS = 600.0  # then the control plane starts afresh: its audit log is in memory


async def _campaign(seed: int, minutes: float) -> bool:
    """Rounds with one seed after the other; whether all went well."""
    deadline, total = time.monotonic() + 60 * minutes, Figures()
    while (left := deadline - time.monotonic()) > 0:
        print(f"seed {seed}", flush=True)
        async with site() as place:
            campaign = Campaign(place, figures=total)
            await campaign.sample(seed, min(left, ROUND_SECONDS))
            print(total, flush=True)
            if campaign.failures:
                return False
        seed += 1
    return True


async def _plan(line: str) -> bool:
    """One plan; whether it went well."""
    async with site() as place:
        campaign = Campaign(place)
        verdict = await campaign.alone(Plan.parse(line))
        campaign.figures.add(verdict)
        print(f"{verdict}\n{campaign.figures}")
        return not verdict.wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--minutes", type=float, default=10.0, help="default: 10")
    parser.add_argument("--plan", help="run this one alone")
    options = parser.parse_args(arguments)
    story = _plan(options.plan) if options.plan else _campaign(options.seed, options.minutes)
    return not asyncio.run(story)


if __name__ == "__main__":
    sys.exit(main())
