"""`ddpjob stacks`: where each rank is, and which one the others wait for."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ddpjob.cli.options import Name, Place, Recorded, find
from ddpjob.cli.output import as_text, document, note, say
from ddpjob.client import agents
from ddpjob.client.agents import Answer, Group, group
from ddpjob.client.follow import check_is_there
from ddpjob.client.job import Job
from ddpjob.cluster.logs import Wanted
from ddpjob.errors import NotFound
from ddpjob.ranks import MAX_WORLD_SIZE, format_ranks


def stacks(
    place: Place,
    name: Name = None,
    rank: Annotated[
        int | None,
        typer.Option(
            min=0, max=MAX_WORLD_SIZE - 1, help="Print the whole stacks of this global rank."
        ),
    ] = None,
    output: Recorded = "text",
) -> None:
    """Show where the ranks of a job are: those with the same Python stack in one line.

    The rank that the others wait for is most often one that differs. The agents in the pods are
    asked through port-forward; asking disturbs no rank.
    """
    client = place.client()
    job = find(client, name)
    processes, node_rank = job.processes_per_node, None
    if rank is not None:
        check_is_there(job, Wanted(frozenset({rank})))
        node_rank = rank // processes
    answers = agents.ask(client.connection, job.body, "/stacks", node_rank=node_rank)
    found = agents.read_stacks(answers, processes)
    is_json = output == "json"
    if not is_json:
        for answer in answers:
            if answer.problem:
                note(f"{answer.pod.name} on {answer.pod.node or 'no node'}: {answer.problem}")
    if is_json and rank is None:
        document(as_text(_record(job, group(found), answers), "json"))
    if not found or rank is not None and rank not in found:
        silent = "no rank has answered" if rank is None else f"rank {rank} has not answered"
        why = f"{job.name} is {job.state}" + ("" if answers else ", and has no pods")
        advice = f"ddpjob describe {job.name}{place.flags}"
        raise NotFound(404, "NotFound", f"{silent}: {why}", advice=advice)
    if rank is not None:
        text = found[rank].rstrip("\n")
        document(json.dumps({"rank": rank, "stacks": text}) if is_json else text)
    elif not is_json:
        groups = group(found)
        say(*_lines(groups))
        example = groups[-1].ranks[0]
        note(f"ddpjob stacks {job.name}{place.flags} --rank {example} has all of a rank")


def _lines(groups: Sequence[Group]) -> list[str]:
    """Return a line for each group: how many ranks, which, and where they are."""
    counts = [f"{len(each.ranks)} rank{'s' if len(each.ranks) > 1 else ' '}" for each in groups]
    ranks = [f"(r{format_ranks(each.ranks).replace(',', ',r')})" for each in groups]
    width, wide = max(map(len, counts)), max(map(len, ranks))
    return [
        f"{count:>{width}}  {which:<{wide}}  {each.place}{'    <- differs' * each.differs}"
        for count, which, each in zip(counts, ranks, groups, strict=True)
    ]


def _record(job: Job, groups: Sequence[Group], answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "job": job.name,
        "namespace": job.namespace,
        "attempt": job.attempt,
        "groups": [asdict(each) for each in groups],
        "unreached": [
            {"pod": answer.pod.name, "node": answer.pod.node, "problem": answer.problem}
            for answer in answers
            if answer.problem
        ],
    }
