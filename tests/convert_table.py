"""`python -m tests.convert_table FOLDER…`: what `ddpjob convert` makes of the example files there.

Each FOLDER is a checkout of Kubeflow's training-operator or trainer. Prints a Markdown table with a
row for each PyTorchJob and TrainJob in its examples, and for each of its runtimes; `--run` runs
what needs no GPU with `ddpjob run --local`. `--write PAGE` puts the table between the two comments
of the page, `<!-- convert: examples -->` and `<!-- end -->`. The files are not part of this
repository, so nothing checks the page against them.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

from ddpjob import api
from ddpjob.client.documents import documents, to_yaml
from ddpjob.convert.fields import Note
from ddpjob.convert.objects import convert
from ddpjob.convert.trainjob import is_runtime
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from tests.foreign import train_job
from tests.parts import with_part

# A stand-in for a script that is in an image: the ranks meet, and say who they are.
STAND_IN = """\
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()}: {int(total)} ranks have met, arguments {sys.argv[1:]}")
dist.destroy_process_group()
"""
# The scripts beside the examples that need neither data nor packages.
SCRIPTS = ("demo.py", "echo.py", "dist_sendrecv.py")
# The script that an image of the examples has as its entry point.
ENTRY_POINTS = {"kubeflow/pytorch-dist-sendrecv-test:latest": "dist_sendrecv.py"}
SECONDS = 300


@dataclass(frozen=True)
class Row:
    """One object of a file, and what became of it."""

    title: str
    file: Path
    job: Body | None
    notes: tuple[Note, ...]
    refusal: str = ""
    run: str = ""


def rows(folder: Path) -> Iterator[Row]:
    """A row for each job in the examples of a checkout, and for a job of each of its runtimes."""
    for file in sorted((folder / "examples").rglob("*.yaml")):
        objects = list(documents(str(file)))
        for body in objects:
            if isinstance(body, dict) and body.get("kind") in ("PyTorchJob", "TrainJob"):
                yield row(body, objects, file, f"{folder.name}: {file.relative_to(folder)}")
    for file in sorted((folder / "manifests" / "base" / "runtimes").rglob("*.yaml")):
        for body in documents(str(file)):
            if is_runtime(body):
                name = body["metadata"]["name"]
                is_tune = "torchtune" in name
                trainer = {} if is_tune else {"command": ["torchrun", "train.py"], "numNodes": 2}
                job = train_job(name, trainer=trainer)
                yield row(job, [body], file, f"{folder.name}: a job of runtime {name}")


def row(body: Body, objects: list[Body], file: Path, title: str) -> Row:
    """What one object becomes."""
    try:
        converted = convert(body, objects)
    except InvalidJob as problem:
        return Row(title, file, None, (), str(problem))
    return Row(title, file, converted.job, converted.notes)


def with_run(row: Row) -> Row:
    """The row with what `ddpjob run --local` has made of the job, if it can run here."""
    if row.job is None or "a job of runtime" in row.title:
        return replace(row, run="" if row.job is None else "no script")
    job, how = deepcopy(row.job), []
    with tempfile.TemporaryDirectory() as folder:
        how = prepare(job, row.file, Path(folder))
        (Path(folder) / "job.yaml").write_text(to_yaml(job))
        ended = subprocess.run(
            [sys.executable, "-m", "ddpjob", "run", "--local", "--quiet", "job.yaml"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    print(f"{row.title}: exit code {ended.returncode}", ended.stderr, file=sys.stderr)
    verdict = "succeeds" if ended.returncode == 0 else f"**exit code {ended.returncode}**"
    return replace(row, run=f"{verdict} with {', '.join(how)}")


def prepare(job: Body, file: Path, folder: Path) -> list[str]:
    """Make a job run on this machine; what had to be done for that."""
    spec, how = job["spec"], []
    if spec.get("launcher") == "none" and "command" not in spec:
        name = ENTRY_POINTS.get(spec["image"], "stand-in.py")
        spec |= {"launcher": "python", "args": [name, *spec.get("args", [])]}
    if "command" in spec:
        how.append("its own command")
    else:
        name = Path(spec["args"][0]).name
        own = [found for found in file.parent.rglob(name) if name in SCRIPTS]
        text = own[0].read_text() if own else STAND_IN
        spec["args"][0] = name
        (folder / name).write_text(text)
        how.append("its own script" if own else "a stand-in for the image's script")
    if spec.pop("suspend", False):
        how.append("suspend false")
    if spec.get("template", {}).get("spec", {}).pop("serviceAccountName", None):
        how.append("no service account")  # which the chart's allow-list refuses
    limits = spec.get("resources", {}).get("limits", {})
    if limits.pop("nvidia.com/gpu", None):
        how.append("no GPU")
    return how


def end(path: str) -> str:
    """The last part of a path, as a cell has it."""
    return re.sub(r"^.*\.(?=(labels|annotations)\.)|^.*\.(?=\w+(\[[^]]*\])?$)", "", path)


def cell(notes: Iterable[Note], common: set[str]) -> str:
    """The notes as a cell has them: the ends of their paths, and their texts."""
    found: dict[str, list[str]] = {}
    for note in notes:
        if note.text not in common:
            value, colon, reason = note.text.partition(": ")
            value, reason = (f" {value}", reason) if colon else ("", value)
            found.setdefault(reason, []).append(f"`{end(note.path)}`{value}")
    lines = [f"{', '.join(fields)}: {reason}" for reason, fields in found.items()]
    return "; ".join(lines).replace("|", "\\|") or "–"


def table(found: list[Row]) -> str:
    """The rows as Markdown, below a list of what is noted of many of them."""
    jobs = [row for row in found if row.job is not None]
    notes = {note.text: note for row in jobs for note in row.notes if not note.is_lost}
    counts = {text: sum(text in {n.text for n in row.notes} for row in jobs) for text in notes}
    common = {text: count for text, count in counts.items() if count > len(jobs) / 4}
    lines = [f"Of {len(jobs)} jobs, and left out below:", ""]
    lines += [f"- {count}: `{end(notes[text].path)}` {text}." for text, count in common.items()]
    columns = ("job", "becomes", "changed", "not carried over", "run on CPUs")
    lines += ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in found:
        cells = [row.title, f"refused: {row.refusal}", "", "", ""]
        if row.job is not None:
            kinds = [[note for note in row.notes if note.is_lost is lost] for lost in (False, True)]
            cells[1:] = becomes(row.job["spec"]), *(cell(k, {*common}) for k in kinds), row.run
        lines.append(re.sub(r"(?<=\|) +(?=\|)", " ", f"| {' | '.join(cells)} |"))
    return "\n".join(lines)


def becomes(spec: Body) -> str:
    """The launcher, and the number of nodes and of processes."""
    parsed = api.Spec.model_validate(spec)
    what = spec.get("launcher", "torchrun")
    if "command" in spec:
        what = "command"
    elif what == "none":
        what = "the image's entry point"
    return f"{what}, {parsed.nnodes} × {parsed.processes_per_node}"


def main() -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    options = parser.parse_args()
    found = [row for folder in options.folders for row in rows(folder)]
    text = table([with_run(row) for row in found] if options.run else found)
    if not options.write:
        print(text)
        return
    options.write.write_text(with_part(options.write.read_text(), "convert: examples", text))


if __name__ == "__main__":
    main()
