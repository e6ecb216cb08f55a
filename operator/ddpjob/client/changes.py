"""Watches jobs, and ends where one of them is refused for longer than somebody waits."""

import time
from collections.abc import Container, Generator, Sequence
from contextlib import closing
from typing import Any

from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster import DDPJOBS
from ddpjob.cluster.connection import Connection
from ddpjob.errors import JobRefused, NotFound
from ddpjob.json_depth import Body


def watch_jobs(
    connection: Connection,
    bodies: Sequence[Body],
    *,
    deadline: float | None,
    refused_after: float | None = None,
    left: Container[str] | None = None,
) -> Generator[Body, None, None]:
    """Yield these jobs, which are of one namespace, as they change, until `deadline`, if any.

    Raises NotFound if one is deleted whose uid is `left`, by default each of them, and JobRefused
    once one of them has been refused for `refused_after` seconds, if any.
    """
    latest = {job.uid: job for job in map(Snapshot, bodies)}
    refused = dict[str, float]()  # when each was first seen to be refused

    def keep(body: Body) -> Body | None:
        return body if Snapshot(body).uid in latest else None

    while latest:
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
                job = Snapshot(event.object)
                if event.type != "DELETED":
                    latest[job.uid] = job
                    yield event.object
                elif left is None or job.uid in left:
                    raise NotFound(404, "NotFound", f"{job.name} was deleted")
                else:
                    latest.pop(job.uid, None)
                if not latest or bool(job.refusal) != (job.uid in refused):
                    break
            else:
                for uid, since in refused.items():
                    if refused_after is not None and time.monotonic() >= since + refused_after:
                        raise JobRefused(latest[uid])
                return
