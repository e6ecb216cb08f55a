"""Checks the promises of docs/operations.md against what was stored, change by change.

It knows nothing of the operator but its name: what it judges by are the objects, in the order in
which they changed, and who changed them.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ddpjob import names
from ddpjob.json_depth import Body
from tests.chaos.rounds import (
    SLACK_SECONDS,
    Deed,
    Rounds,
    given_twice,
    is_updated,
    placed,
    since_of,
    size_of,
    waiting_spares,
)
from tests.chaos.silences import NODE_DEEDS, Silences

FINISHED = ("Succeeded", "Failed")
# The states of docs/operations.md; a state may also stay as it is.
NEXT_STATES = {
    "": {"Pending", "Queued", "Starting", "Suspended"},
    "Pending": {"Queued", "Starting", "Suspended"},
    "Queued": {"Starting", "Suspended"},
    "Starting": {"Running", "Restarting", "Idle", "Suspended", *FINISHED},
    "Running": {"Restarting", "Idle", "Suspended", *FINISHED},
    "Restarting": {"Running", "Restarting", "Idle", "Suspended", *FINISHED},
    "Idle": {"Restarting", "Suspended", *FINISHED},
    "Suspended": {"Queued", "Starting", *FINISHED},
    "Succeeded": set(),
    "Failed": set(),
}
GROUP_ENV = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DDPJOB_WORLD_SIZE", "PET_RDZV_ID")


@dataclass(frozen=True)
class Entry:
    """One change of one object."""

    by_operator: bool
    verb: str  # create, update, status, patch, delete (asked for, or carried out)
    kind: str
    sent: Body  # what the writer sent: the body, or the options of a deletion
    before: Body | None
    after: Body | None  # None: the object is gone
    at: float = 0.0  # s, when it was seen, by any one clock

    @property
    def object(self) -> Body:
        """The object, after the change if it lives on."""
        found = self.after or self.before
        assert found is not None
        return found

    def __str__(self) -> str:
        who = "operator" if self.by_operator else "others"
        return f"{who} {self.verb} {self.kind}/{self.object['metadata']['name']}"


@dataclass(frozen=True)
class Breach:
    """A promise that was broken, and where."""

    promise: str
    place: int  # number of the entry
    words: str

    def __str__(self) -> str:
        return f"{self.promise} at entry {self.place}: {self.words}"


@dataclass
class Auditor:
    """Replays entries one by one; `breaches` has what was wrong with any prefix of them."""

    breaches: list[Breach] = field(default_factory=list)
    _live: dict[str, Body] = field(default_factory=dict)  # every object by uid
    _attempts: dict[tuple[str, int, int], list[Body]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _results: dict[tuple[str, int], dict[int, str]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _hurt: set[tuple[str, int]] = field(default_factory=set)  # a pod has failed, or is deleted
    _started: set[tuple[str, int]] = field(default_factory=set)  # all ranks have run
    _partial: dict[tuple[str, int], float] = field(default_factory=dict)  # since when
    _admitted: set[str] = field(default_factory=set)  # uids of Workloads
    _place: int = 0

    def __post_init__(self) -> None:
        self._rounds = Rounds(self._breach)
        self._silences = Silences(self._breach)

    def replay(self, trail: Iterable[Entry | Deed]) -> list[Breach]:
        """All breaches."""
        for self._place, entry in enumerate(trail):
            if isinstance(entry, Deed):
                self._late(entry.at)
                self._silences.see(entry)
                if entry.what not in NODE_DEEDS:
                    self._rounds.see(entry, self._live.get(entry.uid, {}).get("status") or {})
                continue
            self._precondition(entry)
            if entry.kind == "Pod":
                self._pod(entry)
            elif entry.kind == names.KIND:
                self._job(entry)
            self._take_in(entry)
            if entry.kind == "Pod" and _owner(entry.object) is not None:
                self._group(entry)
            self._late(entry.at)
        return self.breaches

    def at_rest(self) -> list[Breach]:
        """Breaches that only the end can show: leaks, lost results, parts of groups that stay."""
        self._late(math.inf)
        self._silences.at_rest()
        for body in self._live.values():
            owner = _owner(body)
            if owner and owner["uid"] not in self._live:
                self._breach("I11", f"{_name(body)} outlives its job")
        for (uid, attempt), results in self._results.items():
            job = self._live.get(uid)
            if job is None:
                continue
            _, args = self._rounds.runs.get(uid, ((0, 0), ()))
            if args and list(args) != job["spec"]["args"]:
                self._breach("R8", f"{args} has run last, and {job['spec']['args']} was asked for")
            status = job.get("status") or {}
            size = size_of(status, job["spec"]["nnodes"])
            whole = len(results) == size and set(results.values()) == {"Succeeded"}
            if whole and status.get("state") != "Succeeded":
                self._breach("I5", f"attempt {attempt} succeeded, the job is {status.get('state')}")
        return self.breaches

    def _breach(self, promise: str, words: str) -> None:
        self.breaches.append(Breach(promise, self._place, words))

    def _take_in(self, entry: Entry) -> None:
        uid = entry.object["metadata"]["uid"]
        conditions = (entry.object.get("status") or {}).get("conditions") or []
        if entry.kind == "Workload" and any(
            (each["type"], each["status"]) == ("Admitted", "True") for each in conditions
        ):
            self._admitted.add(uid)
        if entry.after is None:
            self._live.pop(uid, None)
        else:
            self._live[uid] = entry.after

    def _precondition(self, entry: Entry) -> None:
        """I12: nobody's but ours, and never blindly."""
        if not entry.by_operator or entry.kind == "Event":
            return
        owner = _owner(entry.object)
        if entry.kind != names.KIND and not (owner and owner["kind"] == names.KIND):
            self._breach("I12", f"{entry}: not owned by a DDPJob")
        if entry.verb == "delete" and not (entry.sent.get("preconditions") or {}).get("uid"):
            self._breach("I12", f"{entry}: no uid")
        if entry.verb == "patch" and not entry.sent["metadata"].get("uid"):
            self._breach("I12", f"{entry}: no uid")
        if entry.verb in ("status", "update") and not entry.sent["metadata"].get("resourceVersion"):
            self._breach("I12", f"{entry}: no resourceVersion")

    def _pod(self, entry: Entry) -> None:
        pod = entry.object
        owner = _owner(pod)
        before = _owner(entry.before) if entry.before else None
        if owner is None and before is not None:  # somebody took it away: to its job it is gone
            self._hurt.add((before["uid"], placed(pod, {})[0]))
        if owner is None:
            return
        attempt, rank, since = placed(pod, self._status_of(owner["uid"]))
        if entry.verb == "create":
            self._created(entry, owner["uid"])
        if entry.by_operator and entry.verb == "create":
            self._silences.created(pod, self._status_of(owner["uid"]))
        if entry.by_operator and entry.verb == "delete":
            self._deleted(entry, owner["uid"], (attempt, rank, since))
            if entry.before is not None:
                status = self._status_of(owner["uid"])
                self._silences.deleted(entry.before, entry.sent, status)
        if entry.after is not None and not _is_live(entry.after) and rank >= 0:
            self._results[owner["uid"], attempt][rank] = entry.after["status"]["phase"]
        going = entry.after is None or "deletionTimestamp" in entry.after["metadata"]
        if (going or _phase(pod) == "Failed") and rank >= 0:
            self._hurt.add((owner["uid"], attempt))
            said = math.inf if going else _round_of(pod)
            self._rounds.fails((owner["uid"], attempt), said)

    def _created(self, entry: Entry, uid: str) -> None:
        pod, job = entry.object, self._live.get(uid)
        status = self._status_of(uid)
        attempt, rank, since = placed(pod, {})
        others = [body for body in self._live.values() if _pod_of(body, uid)]
        live = [(placed(body, status), body) for body in others if _is_live(body)]
        # One that is replaced may be there until it has ended.
        if any(its[:2] == (attempt, rank) and its[2] >= since for its, _ in live):
            self._breach("I1", f"{entry}: rank {rank} of attempt {attempt} lives twice")
        if older := [_name(body) for its, body in live if its[0] < attempt]:
            self._breach("I2", f"{entry}: {older} of an earlier attempt may still run")
        if job is None:
            return
        if status.get("state") in FINISHED:
            self._breach("I6", f"{entry}: the job is {status['state']}")
        if status.get("attempt", 0) < attempt:
            self._breach("I9", f"{entry}: status.attempt is {status.get('attempt', 0)}")
        if entry.by_operator and since_of(status).get(rank, 0) < since:
            self._breach("I9", f"{entry}: status does not say that rank {rank} is replaced")
        if entry.by_operator and rank < 0 and -rank not in waiting_spares(status, seen=False):
            self._breach("I9", f"{entry}: status does not say that there is such a spare")
        labelled = pod["metadata"]["labels"][names.RANK_LABEL] == names.rank_text(rank)
        if not (labelled and rank < job["spec"]["nnodes"]):
            self._breach("I3", f"{entry}: rank {rank} of {job['spec']['nnodes']}")
        if pod["metadata"]["labels"][names.JOB_UID_LABEL] != uid:
            self._breach("I13", f"{entry}: carries another job's uid")
        self._waited(entry, job)
        group = self._attempts[uid, attempt, since]
        if rank < 0:  # the others may have another master by now
            group = self._attempts[uid, attempt, rank]
        if group and _group_env(group[0]) != _group_env(pod):
            self._breach("I3", f"{entry}: {_group_env(pod)}, but {_group_env(group[0])} before")
        if group and _spec_hash(group[0]) != _spec_hash(pod):
            self._breach("I10", f"{entry}: made from another spec than the attempt's first pod")
        group.append(pod)

    def _waited(self, entry: Entry, job: Body) -> None:
        """I16 and I17: what a pod has to wait for is there."""
        here = [body for body in self._live.values() if body["kind"] in ("Workload", "PodGroup")]
        if names.QUEUE_LABEL in (job["metadata"].get("labels") or {}):
            admission = (job.get("status") or {}).get("admission") or {}
            if admission.get("uid") not in self._admitted:
                self._breach("I16", f"{entry}: Kueue has not admitted what the status says")
        wanted = (entry.object["spec"].get("schedulingGroup") or {}).get("podGroupName")
        if wanted and wanted not in map(_name, here):
            self._breach("I17", f"{entry}: there is no PodGroup {wanted}")

    def _group(self, entry: Entry) -> None:
        """Whether a part of the pod's group holds nodes while the rest has yet to start."""
        owner = _owner(entry.object)
        assert owner is not None
        group = (owner["uid"], placed(entry.object, {})[0])
        pods = [
            body
            for body in self._live.values()
            if _pod_of(body, group[0]) and placed(body, {})[0] == group[1]
        ]
        job = self._live.get(group[0])
        begun = {placed(pod, {})[1] for pod in pods if _phase(pod) not in ("", "Pending")}
        if job is None or len(begun) == job["spec"]["nnodes"]:
            self._started.add(group)
        holding = [
            p for p in pods if _is_live(p) and (p["spec"].get("nodeName") or _phase(p) == "Running")
        ]
        if group in self._started or not holding:
            self._partial.pop(group, None)
        else:
            self._partial.setdefault(group, entry.at)

    def _late(self, now: float) -> None:
        """I7: a part of a group holds nodes for longer than the job's user allows."""
        self._rounds.late(now, self._live)
        for (uid, attempt), since in list(self._partial.items()):
            job = self._live.get(uid)
            if job is None or job["metadata"].get("deletionTimestamp"):
                del self._partial[uid, attempt]
                continue
            limit = job["spec"].get("startupDeadlineSeconds")
            if limit is not None and now - since > limit + SLACK_SECONDS:
                del self._partial[uid, attempt]
                self._breach("I7", f"a part of attempt {attempt} waits for longer than {limit} s")

    def _deleted(self, entry: Entry, uid: str, its: tuple[int, int, int]) -> None:
        attempt, rank, since = its
        job = self._live.get(uid)
        status = (job or {}).get("status") or {}
        over = status.get("attempt", 0) > attempt or status.get("state") in FINISHED
        over |= since_of(status).get(rank, 0) > since
        over |= job is not None and rank >= size_of(status, job["spec"]["nnodes"])
        over |= rank < 0 and -rank not in waiting_spares(status, seen=True)
        if job is not None and not over:
            self._breach("I9", f"{entry}: status.attempt is still {status.get('attempt', 0)}")

    def _status_of(self, uid: str) -> Body:
        return (self._live.get(uid) or {}).get("status") or {}

    def _has_cause(self, job: Body, attempt: int) -> bool:
        """Whether something has happened to a pod of this attempt that may end it."""
        uid = job["metadata"]["uid"]
        late = "startupDeadlineSeconds" in job["spec"]  # pods that were never there
        silent = self._silences.may_end(uid, attempt)
        return late or silent or (uid, attempt) in self._hurt

    def _job(self, entry: Entry) -> None:
        if entry.verb != "status" or entry.before is None or entry.after is None:
            return
        old, new = entry.before.get("status") or {}, entry.after.get("status") or {}
        was, now = old.get("state", ""), new.get("state", "")
        if now != was and now not in NEXT_STATES[was]:
            self._breach("I4", f"{entry}: from {was or 'nothing'} to {now}")
        for count in ("attempt", "restarts", "observedGeneration"):
            if (new.get(count) or 0) < (old.get(count) or 0):
                self._breach("I4", f"{entry}: {count} from {old[count]} to {new.get(count)}")
        if twice := given_twice(new):
            self._breach("I1", f"{entry}: two pods have rank {twice}")
        attempts, rounds, restarts = (
            new.get(count, 0) - old.get(count, 0) for count in ("attempt", "round", "restarts")
        )
        steps = attempts or rounds  # a new attempt begins with round 0
        suspending = any(
            c["type"] == "Suspended" and c["reason"] == "Suspending"
            for c in new.get("conditions") or []
        )
        needs_none = suspending or now == "Idle"
        if steps > 1 or restarts > steps or (restarts < steps and not needs_none):
            words = f"{attempts} attempts, {rounds} rounds and {restarts} restarts in one write"
            self._breach("I8", f"{entry}: {words}")
        attempt = old.get("attempt", 0)
        has_cause = is_updated(old, new) or self._has_cause(entry.before, attempt)
        if attempts > 0 and restarts > 0 and not has_cause:
            self._breach("I8", f"{entry}: a restart though no pod has failed or gone")
        job = entry.after
        uid = job["metadata"]["uid"]
        silent = self._silences.may_end(uid, attempt)
        self._rounds.write(uid, job["spec"]["nnodes"], old, new, silent=silent)
        self._silences.write(old, new, [b for b in self._live.values() if _pod_of(b, uid)])
        charged = new["budget"]["charged"] - (old.get("budget") or {"charged": 0})["charged"]
        if charged > 1:
            self._breach("I8", f"{entry}: charges {charged} at once")


def _name(body: Body) -> str:
    return str(body["metadata"]["name"])


def _owner(body: Body) -> Body | None:
    owners: list[Body] = body["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def _pod_of(body: Body, uid: str) -> bool:
    owner = _owner(body)
    return body["kind"] == "Pod" and owner is not None and owner["uid"] == uid


def _phase(pod: Body) -> str:
    return (pod.get("status") or {}).get("phase") or ""


def _is_live(pod: Body) -> bool:
    return _phase(pod) not in FINISHED


def _round_of(pod: Body) -> float:
    """The round that has failed, by the agent's message; infinity where nobody says it."""
    try:
        (trainer,) = pod["status"]["containerStatuses"]
        return int(json.loads(trainer["state"]["terminated"]["message"])["round"])
    except (KeyError, TypeError, ValueError):
        return math.inf


def _group_env(pod: Body) -> dict[str, str]:
    (trainer,) = (c for c in pod["spec"]["containers"] if c["name"] == names.TRAINER_CONTAINER)
    return {v["name"]: v.get("value") for v in trainer["env"] if v["name"] in GROUP_ENV}


def _spec_hash(pod: Body) -> Any:
    return pod["metadata"]["annotations"].get(names.SPEC_HASH_ANNOTATION)
