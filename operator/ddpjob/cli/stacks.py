"""`ddpjob stacks`: where each rank is, and which one the others wait for."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ddpjob.cli.options import Context, Kubeconfig, Name, Namespace, Place, find
from ddpjob.cli.output import Record, document, note, say
from ddpjob.client import agents
from ddpjob.client.agents import Answer
from ddpjob.client.job import Job
from ddpjob.client.logs import Wanted
from ddpjob.client.selection import check_is_there
from ddpjob.client.stacks import Group, group
from ddpjob.errors import NotFound
from ddpjob.ranks import MAX_WORLD_SIZE, format_ranks
from ddpjob.text import printable


def stacks(
    name: Name = None,
    rank: Annotated[
        int | None,
        typer.Option(
            min=0, max=MAX_WORLD_SIZE - 1, help="Print the whole stacks of this global rank."
        ),
    ] = None,
    namespace: Namespace = None,
    output: Annotated[
        Record, typer.Option("--output", "-o", help="Text, or one object of JSON.")
    ] = Record.TEXT,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show where the ranks of a job are: those with the same Python stack in one line.

    The rank that the others wait for is most often one that differs. The agents in the pods are
    asked through port-forward; asking disturbs no rank.
    """
    place = Place(namespace, context, kubeconfig)
    if rank is None:
        show(place, name, output)
    else:
        show_rank(place, name, rank, output)


def show(place: Place, name: str | None, output: Record) -> None:
    """Print the groups of ranks with equal stacks. Raises NotFound if no rank answers."""
    job, answers, found = _ask(place, name)
    groups = group(found)
    if output is Record.JSON:
        document(json.dumps(_record(job, groups, answers), indent=2))
    else:
        _tell_absent(answers)
    if not groups:
        raise _nothing(job, place, answers)
    if output is Record.JSON:
        return
    counts = [f"{len(each.ranks)} rank{'s' if len(each.ranks) > 1 else ' '}" for each in groups]
    ranks = [f"({_ranks(each)})" for each in groups]
    width, wide = max(map(len, counts)), max(map(len, ranks))
    for count, which, each in zip(counts, ranks, groups, strict=True):
        mark = "    <- differs" if each.differs else ""
        say(f"{count:>{width}}  {which:<{wide}}  {each.place}{mark}")
    note(f"ddpjob stacks {job.name}{place.flags} --rank {groups[-1].ranks[0]} has all of a rank")


def show_rank(place: Place, name: str | None, rank: int, output: Record) -> None:
    """Print all that is known of one rank. Raises NotFound if it does not answer."""
    job, answers, found = _ask(place, name, rank)
    if rank not in found:
        wanted = Wanted(frozenset({rank}))
        check_is_there(job.name, job.nnodes, job.processes_per_node, wanted)
        _tell_absent(answers)
        raise _nothing(job, place, answers, rank)
    text = found[rank].rstrip("\n")
    document(json.dumps({"rank": rank, "stacks": text}) if output is Record.JSON else text)


def _ask(
    place: Place, name: str | None, rank: int | None = None
) -> tuple[Job, list[Answer], dict[int, str]]:
    """Ask all pods of the job, or the one with this rank."""
    client = place.client()
    job = find(client, name)
    node_rank = None if rank is None else rank // job.processes_per_node
    answers = agents.ask(client.connection, job.body, "/stacks", node_rank=node_rank)
    return job, answers, agents.read_stacks(answers, job.processes_per_node)


def _tell_absent(answers: Sequence[Answer]) -> None:
    for answer in answers:
        if answer.problem:
            note(f"{answer.pod.name} on {answer.pod.node or 'no node'}: {answer.problem}")


def _nothing(
    job: Job, place: Place, answers: Sequence[Answer], rank: int | None = None
) -> NotFound:
    silent = "no rank has answered" if rank is None else f"rank {rank} has not answered"
    why = f"{job.name} is {job.state}" + ("" if answers else ", and has no pods")
    error = NotFound(404, "NotFound", f"{silent}: {why}")
    error.advice = f"ddpjob describe {job.name}{place.flags}"
    return error


def _ranks(each: Group) -> str:
    return ",".join(f"r{part}" for part in format_ranks(each.ranks).split(","))


def _record(job: Job, groups: Sequence[Group], answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "job": job.name,
        "namespace": job.namespace,
        "attempt": job.attempt,
        "groups": [
            {
                "ranks": list(each.ranks),
                "differs": each.differs,
                "state": each.state,
                "frames": [
                    {
                        "file": printable(frame.file, 512),
                        "line": frame.line,
                        "function": printable(frame.function, 512),
                    }
                    for frame in each.frames
                ],
            }
            for each in groups
        ],
        "unreached": [
            {"pod": answer.pod.name, "node": answer.pod.node, "problem": answer.problem}
            for answer in answers
            if answer.problem
        ],
    }
