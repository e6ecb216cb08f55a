"""`python -m tests.chaos.mutants`: is the suite any good? Classic faults of operators, one by one.

Each mutant is a copy of the sources with one change; the tests that are named must fail on it, and
pass on a copy without a change.
Exit codes: 0 all mutants were killed, 1 some survived, or a change no longer fits the source.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cluster.tiers import ROOT

COPIED = ("operator", "tests", "charts", "manifests", "images", "examples", "benchmarks")
UNIT = "tests/unit/"
TIMEOUT_SECONDS = 1200
SETTINGS = {"PYTHONDONTWRITEBYTECODE": "1", "DDPJOB_TEST_PATIENCE": "40"}
# The parts of the suite that may notice, and what of it they have.
PARTS = {"make test": "not deep", "deep tests": "deep"}


@dataclass(frozen=True)
class Mutant:
    """One wrong idea, where it would stand, and the tests that see it."""

    name: str
    file: str  # below operator/ddpjob
    old: str  # stands there exactly once
    new: str
    tests: tuple[str, ...]  # of each part that has some of them, at least one must fail


def life(workload: str) -> str:
    """The test of a job's life with a fault at every write."""
    return f"tests/chaos/test_faults.py::test_a_fault_at_any_write_changes_nothing[{workload}]"


MUTANTS = (
    Mutant(
        "names by chance (generateName)",
        "controller/children.py",
        "body = await self.cluster.create(\n"
        "                        PODS, job.namespace, template.body(rank, proof, memory.token)\n"
        "                    )",
        "fresh = __import__('orjson').loads(template.body(rank, proof, memory.token))\n"
        "                    fresh['metadata']['name'] += f'-{time.time_ns() % 10**6}'\n"
        "                    body = await self.cluster.create(PODS, job.namespace, fresh)",
        tests=(life("succeeds"), life("fails-once")),
    ),
    Mutant(
        "deletions without a uid",
        "cluster/kube.py",
        '"preconditions": {"uid": uid},',
        "",
        tests=(
            "tests/api/test_operator.py::test_killing_the_operator_twenty_times_changes_nothing",
        ),
    ),
    Mutant(
        "the budget in memory",
        "controller/reconcile.py",
        "        decision = await aside(_is_long(job, observed), decide, job, observed, now)\n",
        "        kept = vars(memory).setdefault('budget', type(job.status.budget)())\n"
        "        own = job.status.model_copy(update={'budget': kept})\n"
        "        decision = decide(job.model_copy(update={'status': own}), observed, now)\n"
        "        vars(memory)['budget'] = decision.status.budget\n",
        tests=(life("uses-up-its-budget"),),
    ),
    Mutant(
        "deletions before the counter",
        "controller/reconcile.py",
        "                await self._write_status(job, decision, memory)\n"
        "            # Then the API",
        "                if decision.status.attempt > job.status.attempt:\n"
        "                    for pod in list(self.caches.pods(job)):\n"
        "                        deletion = __import__('ddpjob').plan.model.Deletion(pod)\n"
        "                        await self.children._delete_pod(deletion)\n"
        "                await self._write_status(job, decision, memory)\n"
        "            # Then the API",
        tests=(life("fails-once"),),
    ),
    Mutant(
        "an index that keeps ghosts",
        "cluster/informer.py",
        'self._store.remove(metadata["uid"], version, is_gone=is_gone)',
        "pass",
        tests=(life("fails-once"),),
    ),
    Mutant(
        "finished ranks in memory",
        "plan/decide.py",
        'update={"succeeded_ranks": format_ranks(succeeded)})\n    # An answer',
        'update={"succeeded_ranks": ""})\n    # An answer',
        tests=(
            UNIT + "test_finish.py::test_a_finished_rank_whose_pod_is_deleted_is_not_run_again",
            life("loses-a-finished-pod"),
        ),
    ),
    Mutant(
        "status without a resourceVersion",
        "controller/reconcile.py",
        '                "resourceVersion": job.metadata.resource_version,\n',
        "",
        tests=(life("fails-once"),),
    ),
    Mutant(
        "adoption by name",
        "controller/children.py",
        'if existing and owner is not None and owner.get("uid") == job.uid:',
        "if existing:\n            return\n        if existing and owner is not None:",
        tests=(
            UNIT
            + "test_children.py::test_a_network_policy_that_somebody_else_has_made_is_made_anew",
            life("finds-its-name-taken"),
        ),
    ),
    Mutant(
        "conflicts taken for success",
        "controller/reconcile.py",
        "        except NotFound:\n            self.caches.remove_job(job.uid)\n            return\n"
        "        memory.written_at",
        "        except NotFound:\n            self.caches.remove_job(job.uid)\n            return\n"
        "        except __import__('ddpjob').errors.Conflict:\n"
        "            version = str(int(job.metadata.resource_version) + 1)\n"
        "            stored = {**body, 'metadata': {**body['metadata'], 'resourceVersion': version}}\n"
        "        memory.written_at",
        tests=(life("fails-once"),),
    ),
    Mutant(
        "ranks by their place in a list",
        "plan/running.py",
        "missing = tuple(rank for rank in range(inputs.size) if rank not in present)",
        "missing = tuple(range(len(present), job.spec.nnodes))",
        tests=(
            UNIT + "test_startup.py::test_only_missing_pods_are_created",
            life("succeeds"),
            life("loses-a-finished-pod"),
        ),
    ),
    Mutant(
        "failures as events",
        "controller/reconcile.py",
        "        return Observed(\n"
        "            pods=(*pods.values(), *memory.left(job.status, pods, made)),\n",
        "        alive = vars(memory).setdefault('alive', set())\n"
        "        pods = tuple(\n"
        "            pod\n"
        "            for pod in self.caches.pods(job)\n"
        "            if pod.result != 'failed' or pod.uid in alive\n"
        "        )\n"
        "        known = self.caches.pods(job)\n"
        "        alive.update(pod.uid for pod in known if pod.live)\n"
        "        return Observed(\n            pods=pods,\n",
        tests=(life("fails-once"),),
    ),
    Mutant(
        "a list that replaces nothing",
        "cluster/informer.py",
        "                self.remove(uid, listed_at, is_gone=False)",
        "                pass",
        tests=(life("fails-once"), life("is-suspended")),
    ),
    Mutant(
        "an order before the status",
        "plan/decide.py",
        "order=order_of(job, pods, observed, ends=decision.end_round)",
        "order=order_of(job.model_copy(update={'status': decision.status}), pods, observed, "
        "ends=decision.end_round)",
        tests=(life("fails-in-place"),),
    ),
    Mutant(
        "a round while a lost pod lives",
        "plan/own.py",
        "        number = min(number, max(observed.ordered, seen.round))\n",
        "        pass\n",
        tests=(UNIT + "test_replacement.py",),
    ),
    Mutant(
        "a replaced pod obeyed",
        "plan/own.py",
        """        prints.append(f"{rank}:{known or found}")\n""",
        "",
        tests=(UNIT + "test_replacement.py", life("replaces-rank-1")),
    ),
    Mutant(
        "a pod replaced whose end nobody saw",
        "plan/remedy.py",
        "return group if are_fenced(inputs, status, group) else None",
        "return group",
        tests=(UNIT + "test_replacement.py",),
    ),
    Mutant(
        "a spare before its number",
        "plan/spares.py",
        "    missing = tuple(-e.number for e in waiting if e.number not in fit and e in stored)\n"
        "    kept = _kept(inputs, entries, waiting)\n",
        "    missing = tuple(-e.number for e in waiting if e.number not in fit)\n"
        "    kept = _kept(inputs, entries, waiting)\n"
        "    if not waiting and wanted:\n"
        "        missing = (-1 - max((e.number for e in entries), default=0),)\n",
        tests=(UNIT + "test_spares.py", life("swaps-rank-1")),
    ),
    Mutant(
        "a lost spare that keeps its rank",
        "api/ownpods.py",
        "found = {(s.rank, s.round): (-s.number, 0)",
        "found = {(s.rank, self.since.get(s.rank, 0)): (-s.number, 0)",
        tests=(UNIT + "test_spares.py",),
    ),
    Mutant(
        "a size that no agent is told",
        "plan/own.py",
        "size = size_of(job, status) if job.spec.elastic else 0",
        "size = 0",
        tests=(UNIT + "test_sizes.py", life("shrinks-by-rank-1")),
    ),
    Mutant(
        "a pod of a rank that is no more, not waited for",
        "plan/own.py",
        "if its < here or has_been and size <= pod.rank < job.spec.nnodes:",
        "if its < here:",
        tests=(UNIT + "test_sizes.py",),
    ),
    Mutant(
        "a larger group though a rank has ended well",
        "plan/sizes.py",
        "if size <= inputs.size or len(here) < inputs.size or inputs.succeeded:",
        "if size <= inputs.size or len(here) < inputs.size:",
        tests=(UNIT + "test_sizes.py",),
    ),
    Mutant(
        "a larger group while ranks fail or end",
        "plan/sizes.py",
        "if is_done or seen and seen.exits:",
        "if is_done:",
        tests=(UNIT + "test_sizes.py",),
    ),
    Mutant(
        "a lost member awaited",
        "plan/running.py",
        "if any(pod.live and pod.attempt != status.attempt for pod in older):",
        "if any(pod.live for pod in older):",
        tests=(UNIT + "test_replacement.py",),
    ),
    Mutant(
        "a round that begins though another one is to follow",
        "plan/own.py",
        "held = number < status.round",
        "held = False",
        tests=(UNIT + "test_spares.py",),
    ),
    Mutant(
        "an old round's failure counted",
        "plan/views.py",
        "    if seen is None or (seen.attempt, seen.round) != (status.attempt, status.round):\n"
        "        return {}\n",
        "    if seen is None or seen.attempt != status.attempt:\n"
        "        return {}\n"
        "    return {  # by the message alone\n"
        "        pod.rank: replace(pod, result='failed', exit_code=each.exit_code, message=each.message)\n"
        "        for each in seen.exits\n"
        "        for pod in inputs.current\n"
        "        if pod.rank == each.rank and pod.running and not pod.deleting\n"
        "    }\n",
        tests=(
            UNIT
            + "test_in_place.py::test_then_nothing_is_done_until_the_agents_say_that_all_ranks_run",
            life("loses-a-pod-between-rounds"),
        ),
    ),
    Mutant(
        "a failure charged in two rounds",
        "plan/failure.py",
        "    if found.round < status.round:\n",
        "    if found.attempt < status.attempt:\n",
        tests=(
            UNIT
            + "test_answer.py::test_pods_that_end_with_what_was_answered_are_not_charged_again",
            life("is-not-asked-on"),
        ),
    ),
    Mutant(
        "Running before the ranks",
        "plan/running.py",
        'if full and status.state != "Running" and _has_begun(inputs, status):',
        'if full and status.state != "Running":',
        tests=(life("fails-in-place"),),
    ),
    Mutant(
        "an old round's ranks running",
        "plan/running.py",
        "seen.running and (seen.attempt, seen.round) == here:",
        "seen.running and seen.attempt == here[0]:",
        tests=(
            UNIT
            + "test_in_place.py::test_then_nothing_is_done_until_the_agents_say_that_all_ranks_run",
            life("loses-a-pod-between-rounds"),
        ),
    ),
    Mutant(
        "rank 0's word alone",
        "controller/silence.py",
        "                if now - at >= self.timeout and self._is_missing(rank, now)\n"
        "            )\n"
        "            return found if found == self._leaving(now) else frozenset()\n",
        "                if now - at >= self.timeout\n            )\n            return found\n",
        tests=(
            UNIT + "test_silence.py::test_rank_0s_word_alone_is_not_enough",
            life("is-heard-by-the-operator-alone"),
        ),
    ),
    Mutant(
        "the operator's word alone",
        "controller/silence.py",
        "*self.unheard]\n\n"
        "    def silent(self, now: float) -> frozenset[int]:\n"
        '        """Return the nodes that are silent."""\n',
        "*range(1, 9)]\n\n"
        "    def silent(self, now: float) -> frozenset[int]:\n"
        '        """Return the nodes that do not answer the operator."""\n'
        "        if 0 not in self.missed:\n"
        "            return frozenset(r for r in self.missed if self._is_missing(r, now))\n",
        tests=(
            UNIT
            + "test_silence.py::test_a_node_is_silent_if_neither_rank_0_nor_the_operator_hears_it",
            life("is-out-of-sight"),
        ),
    ),
    Mutant(
        "rank 0 silent without a witness",
        "controller/silence.py",
        "return (said or ended) and not self.hearing",
        "return not self.hearing",
        tests=(
            UNIT + "test_silence.py::test_rank_0_is_silent_if_another_node_has_lost_it_too",
            life("is-out-of-sight"),
        ),
    ),
    Mutant(
        "half of the node timeout",
        "controller/silence.py",
        "if now - at >= self.timeout and",
        "if now - at >= self.timeout / 2 and",
        tests=(
            UNIT
            + "test_silence.py::test_a_node_is_silent_if_neither_rank_0_nor_the_operator_hears_it",
            life("loses-a-node"),
        ),
    ),
    Mutant(
        "silence charged",
        "plan/reasons.py",
        "NODE_LOST, NODE_SILENT, NODE_REFUSED",
        "NODE_LOST, NODE_REFUSED",
        tests=(
            UNIT + "test_silent.py::test_a_silent_node_means_a_new_attempt_that_is_not_counted",
            life("loses-a-node"),
        ),
    ),
    Mutant(
        "back to the silent node",
        "pods/render.py",
        "silent = [node.name for node in job.status.silent_nodes]",
        "silent = list[str]()",
        tests=(life("loses-a-node"),),
    ),
    Mutant(
        "an old attempt's silence",
        "controller/reconcile.py",
        "silent=memory.silent.get(made_of(job.status), frozenset()),",
        "silent=frozenset().union(*memory.silent.values()),",
        tests=(UNIT + "test_reconcile.py::test_who_is_silent_in_one_attempt_is_not_in_the_next",),
    ),
    Mutant(
        "survivors deleted by force",
        "plan/cleanup.py",
        "if pod.live and pod.node in silent}",
        "if pod.live and silent}",
        tests=(
            UNIT
            + "test_silent.py::test_its_pods_are_deleted_by_force_and_those_of_others_in_order",
            life("loses-a-node"),
        ),
    ),
    Mutant(
        "an order before all have the code",
        "../ddpjob_agent/nodes/group.py",
        "is_other = node.state == CLEAN and node.program != self.order.program",
        "is_other = False",
        tests=(
            UNIT + "agent/test_program.py::test_a_round_begins_once_all_nodes_have_what_it_runs",
        ),
    ),
    Mutant(
        "other code in a round that has begun",
        "../ddpjob_agent/nodes/group.py",
        "program = old.program if number <= old.begun else program",
        "program = program or old.program",
        tests=(UNIT + "agent/test_program.py::test_a_round_that_has_begun_runs_nothing_else",),
    ),
    Mutant(
        "code whose sum nobody looks at",
        "controller/programs.py",
        "if found != sha256:",
        "if not found:",
        tests=(UNIT + "test_programs.py::test_code_that_is_not_there_or_another_stops_no_rank",),
    ),
)


def parts_that_notice(mutant: Mutant, folder: Path) -> dict[str, bool | None]:
    """Whether each part's tests fail on it, None where it has none.

    Raises ValueError where the change does not fit the source.
    """
    copy_sources(folder)
    path = folder / "operator" / "ddpjob" / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        found = text.count(mutant.old)
        raise ValueError(f"{mutant.name}: {mutant.file} has its old text {found} times, not once")
    path.write_text(text.replace(mutant.old, mutant.new))
    return {part: fails(mutant.tests, marks, folder) for part, marks in PARTS.items()}


def copy_sources(folder: Path) -> None:
    """What the tests need, without a change."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def fails(tests: Sequence[str], marks: str, folder: Path) -> bool | None:
    """Whether one of these tests fails on this copy; None where none of them has these marks.

    Raises ValueError where they do not even run.
    """
    source = os.pathsep.join(str(folder / part) for part in ("operator", "images/trainer", "."))
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", *tests, "-m", marks],
        cwd=folder,
        env={**os.environ, **SETTINGS, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    if ended.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        return None
    if ended.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise ValueError(f"{tests}: pytest ended with {ended.returncode}\n{ended.stdout}")
    why = [line for line in ended.stdout.splitlines() if line.startswith("E  ")]
    if why:
        print(f"  {' '.join(why[0].split())[:150]}", flush=True)
    return ended.returncode == pytest.ExitCode.TESTS_FAILED


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all mutants, or those whose names have a text; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; default: all mutants")
    names = parser.parse_args(arguments).names
    chosen = [m for m in MUTANTS if not names or any(name in m.name for name in names)]
    if not chosen:
        parser.error(f"no mutant has one of {', '.join(names)} in its name")
    with TemporaryDirectory() as folder:
        copy_sources(Path(folder))
        if fails(sorted({test for mutant in chosen for test in mutant.tests}), "", Path(folder)):
            print("error: the tests fail on the sources as they are", file=sys.stderr)
            return 1
    print(f"{'mutant':34} {'  '.join(PARTS)}", flush=True)
    survivors, noticed = [], Counter[str]()
    for mutant in chosen:
        try:
            with TemporaryDirectory() as folder:
                found = parts_that_notice(mutant, Path(folder))
        except (ValueError, subprocess.TimeoutExpired) as error:
            print(f"error: {error}", file=sys.stderr)
            found = dict.fromkeys(PARTS, False)
        words = {True: "killed", False: "SURVIVED", None: "-"}
        row = "  ".join(f"{words[found[part]]:{len(part)}}" for part in PARTS)
        print(f"{mutant.name:34} {row}", flush=True)
        noticed.update(part for part in PARTS if found[part])
        if False in found.values():
            survivors.append(mutant.name)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    for part in PARTS:
        print(f"{noticed[part]} by {part}")
    for name in survivors:
        print(f"survived: {name}", file=sys.stderr)
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
