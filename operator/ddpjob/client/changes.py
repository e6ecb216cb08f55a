"""Watches jobs, and ends where one of them is refused for longer than somebody waits."""

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

from ddpjob.client.connection import Connection
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster import DDPJOBS, WatchEvent
from ddpjob.errors import JobRefused
from ddpjob.json_depth import Body


def watch_jobs(
    connection: Connection,
    bodies: Sequence[Body],
    *,
    deadline: float | None,
    refused_after: float | None = None,
) -> Generator[WatchEvent, None, None]:
    """Yield each change of these jobs, which are of one namespace, until `deadline`, if any.

    Raises JobRefused once one of them has been refused for `refused_after` seconds, if any.
    """
    latest = {job.uid: job for job in map(Snapshot, bodies)}
    refused = dict[str, float]()  # when each was first seen to be refused

    def keep(body: Body) -> Body | None:
        return body if Snapshot(body).uid in latest else None

    while True:
        now = time.monotonic()
        refused = {uid: refused.get(uid, now) for uid, job in latest.items() if job.refusal}
        ends = [] if deadline is None else [deadline]
        if refused_after is not None:
            ends += [since + refused_after for since in refused.values()]
        last = [job.body for job in latest.values()]
        which: dict[str, Any] = {"after": last[0]} if len(bodies) == 1 else {"known": last}
        watch = connection.watch(
            DDPJOBS,
            namespace=next(iter(latest.values())).namespace,
            keep=keep,
            deadline=min(ends, default=None),
            **which,
        )
        with closing(watch):  # an error would keep its connection open as long as itself
            for event in watch:
                yield event
                job = Snapshot(event.object)
                if event.type == "DELETED":
                    latest.pop(job.uid, None)
                else:
                    latest[job.uid] = job
                if not latest or bool(job.refusal) != (job.uid in refused):
                    break
            else:
                _raise_refused([latest[uid] for uid in refused], refused, refused_after)
                return
        if not latest:
            return


def _raise_refused(
    jobs: Sequence[Snapshot], refused: dict[str, float], after: float | None
) -> None:
    """Raise JobRefused for the first of these jobs that has been refused for so long."""
    for job in jobs:
        if after is not None and time.monotonic() >= refused[job.uid] + after:
            raise JobRefused(job)
