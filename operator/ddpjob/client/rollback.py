"""Takes an update back if its ranks fail before their first step. Pure but for `watch_rollback`."""

from dataclasses import dataclass
from typing import Any, Literal

from ddpjob import names, why
from ddpjob.client import edits
from ddpjob.client.job import Job
from ddpjob.client.snapshot import Snapshot
from ddpjob.code.code_maps import code_names
from ddpjob.errors import Conflict
from ddpjob.json_depth import Body

# What an update changes.
_FIELDS = ("args", "env", "code")


@dataclass(frozen=True)
class Verdict:
    """What becomes of an update."""

    kind: Literal["kept", "back", "edited", "ended"]
    """It stays; it is taken back; it stays, since somebody else has edited the job; the job has
    finished for good."""
    words: str
    """Why, to be read after the job's name."""


def watch_rollback(job: Job, before: Body, *, timeout: float | None = None) -> Verdict:
    """Follow an update until it has proved itself, or has failed and is taken back.

    `job` is as `update` has returned it, and `before` its body before that. An update has proved
    itself with a step, or by ranks that have ended well. Raises JobTimeout, NotFound or another
    ClusterError.
    """
    sent = job.body
    if _generation(sent) == _generation(before):
        return Verdict("kept", "is as it was")
    if _generation(sent) != (_generation(before) or 0) + 1:  # of what was there nothing is known
        return Verdict("edited", "was edited by somebody else, so the update stays")
    while True:
        job.until(lambda now: judge(now, sent) is not None, timeout=timeout, goal="proved")
        verdict = judge(job, sent)
        assert verdict is not None
        if verdict.kind != "back":
            return verdict
        try:
            job.patch(undo(job.body, before))
            return verdict
        except Conflict:  # it has changed since it was read, and may have made a step
            continue


def judge(job: Snapshot, sent: Body) -> Verdict | None:
    """Return what becomes of an update, or None while that is open.

    `sent` is the job as the update has left it, before the operator has seen it.
    """
    status, ours = job.body.get("status"), job.revision
    is_seen = (why.number(status, "observedGeneration") or 0) >= (_generation(sent) or 0)
    has_begun = is_seen and ours > (why.number(sent, "status", "program", "revision") or 0)
    if has_begun and _has_stepped(job, ours):
        return Verdict("kept", f"has made a step as revision {ours}")
    if has_begun and job.has_ended and not job.has_failed:
        return Verdict("kept", f"has ended well as revision {ours}")
    if job.is_finished:
        text = f"has {job.state.lower()} for good, so the update cannot be taken back"
        return Verdict("ended", f"{text}; a new job of it: ddpjob rerun {job.name}")
    if _generation(job.body) != _generation(sent):
        return Verdict("edited", "was edited by somebody else, so the update stays")
    accepted = why.condition(status, "Accepted")
    if is_seen and not has_begun and accepted.get("status") == "False":
        return Verdict("back", f"cannot run the update: {why.text(accepted, 'message')}")
    if has_begun and (job.has_failed or _has_counted(status, ours)):
        cause = why.cause(status, job.processes_per_node)
        return Verdict("back", f"failed before its first step as revision {ours}: {cause}")
    return None


def undo(job: Body, before: Body) -> Body:
    """Return the merge patch that gives the job its former arguments, variables and code.

    It is refused where the job has changed since it was read.
    """
    known, former = (
        {f: each["spec"][f] for f in _FIELDS if f in each["spec"]} for each in (job, before)
    )
    notes = dict(job["metadata"].get("annotations") or {})
    wanted = {**notes, **_notes(notes, job, before)}
    metadata: Body = {
        "resourceVersion": job["metadata"]["resourceVersion"],
        "annotations": {name: text for name, text in wanted.items() if notes.get(name) != text},
    }
    return {"metadata": metadata, "spec": edits.merge_patch(known, former)}


def _notes(notes: Body, job: Body, before: Body) -> Body:
    """Return the annotations about code: the former commit, and the ConfigMaps not in use."""
    commit = why.part(before, "metadata", "annotations", names.REVISION_ANNOTATION)
    noted = str(notes.get(names.PREVIOUS_CODE_ANNOTATION) or "").split(",")
    unused = {*filter(None, noted), *code_names(job)} - {*code_names(before)}
    previous = ",".join(sorted(unused)) or None
    return {names.REVISION_ANNOTATION: commit, names.PREVIOUS_CODE_ANNOTATION: previous}


def _generation(job: Body) -> int | None:
    return why.number(job, "metadata", "generation")


def _entries(status: Any) -> list[Any]:
    found = why.part(status, "history")
    return found if isinstance(found, list) else []


def _has_counted(status: Any, revision: int) -> bool:
    """Return whether a failure of this revision has counted, and not that of a node, say."""
    ours = (each for each in _entries(status) if why.number(each, "revision") == revision)
    return any(why.part(each, "charged") is True for each in ours)


def _has_stepped(job: Snapshot, revision: int) -> bool:
    """Return whether ranks of this revision have made a step, by the last report of rank 0."""
    report = why.part(job.body, "status", "progress")
    place = (why.number(report, "attempt") or 0, why.number(report, "round") or 0)
    of = {(job.attempt, job.round): revision}
    for each in _entries(job.body.get("status")):
        at = (why.number(each, "attempt") or 0, why.number(each, "round") or 0)
        of[at] = why.number(each, "revision") or 1
    # A progress file may begin with the step at which the script goes on, before it makes one.
    is_file = why.part(report, "source") == "file"
    first = why.number(report, "firstStep") if is_file else 0
    return of.get(place) == revision and (why.number(report, "step") or 0) > (first or 0)
