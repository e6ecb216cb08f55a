"""What follows from an edit of what the ranks run: a round of the same pods, or new pods. Pure."""

import shlex
from dataclasses import replace

from ddpjob.api import Budget, DDPJob, Program, Status
from ddpjob.plan.model import Decision, Event
from ddpjob.plan.own import BEGUN, Inputs, awaits_pods
from ddpjob.plan.reasons import UPDATED
from ddpjob.plan.restart import restart, restart_in_place, staying
from ddpjob.plan.status import with_history


def with_program(status: Status, wanted: str) -> Status:
    """Return `status` with what the ranks of its round run, which has this hash."""
    known = status.program
    if not wanted or known is not None and known.hash == wanted:
        return status
    revision = known.revision + 1 if known else 1
    program = Program(revision=revision, hash=wanted, round=status.round)
    return status.model_copy(update={"program": program})


def is_edited(status: Status, wanted: str) -> bool:
    """Return whether what the ranks are to run is known, and not what they run."""
    return bool(wanted) and status.program is not None and status.program.hash != wanted


def restart_outdated(inputs: Inputs, status: Status) -> Decision | None:
    """Return new pods where some had ended well with what ran before; None without such."""
    ended = {pod.rank for pod in inputs.current if pod.result == "succeeded"}
    if status.state not in BEGUN or not inputs.job.spec.has_agent or ended <= inputs.succeeded:
        return None
    text = "ranks had ended before they got what has been edited; all pods are made anew"
    begun = restart(inputs, with_history(status, UPDATED.name, inputs.now), UPDATED.name, text)
    return replace(begun, events=(Event(UPDATED.name, text),))


def _words(job: DDPJob, known: Program) -> str:
    """Return what runs next: values of variables may be nobody else's."""
    code = f"code {job.spec.code.sha256[:12]}, " if job.spec.code else ""
    names = ", ".join(each.name for each in job.spec.env if each.value is not None)
    env = f"with {names[:160]} set, " if names else ""
    args = shlex.join(word[:80] for word in (job.spec.args or ())[:40])
    return f"revision {known.revision + 1} follows: {code}{env}args {args}"


def update(inputs: Inputs, status: Status) -> Decision | None:
    """Return the next round, or attempt, of an edited program; None if there is none to begin.

    The pods stay if they are otherwise as they would be made now. Failures of what ran before count
    no more.
    """
    wanted, known = inputs.observed.program, status.program
    if known is None or not is_edited(status, wanted):
        return None
    if status.state not in BEGUN or not inputs.current:
        return None
    there = {pod.rank for pod in inputs.current} | inputs.succeeded
    is_whole, stay = len(there) == inputs.size, staying(inputs)
    awaits = status.state == "Restarting" and status.round > 0 and awaits_pods(status)
    if not is_whole and awaits:  # so that round has not begun
        if not inputs.observed.confirmed:
            return Decision(inputs.job.status, confirm=True)
        return Decision(with_program(status, wanted))
    can_stay = is_whole and len(stay) == inputs.size and not inputs.succeeded
    if not can_stay and is_whole and status.state in ("Starting", "Restarting"):
        return None  # all pods are there, and will run
    text = "args, env or code have been edited"
    ended = with_history(status, UPDATED.name, inputs.now, message=_words(inputs.job, known))
    begun = (restart_in_place if can_stay else restart)(inputs, ended, UPDATED.name, text)
    budget = Budget(next_restart_time=begun.status.budget.next_restart_time)
    fresh = {"budget": budget, "result": None}
    status = with_program(begun.status.model_copy(update=fresh), wanted)
    text += f"; in place, as round {status.round}" if can_stay else "; all pods are made anew"
    return replace(begun, status=status, events=(Event(UPDATED.name, text),))
