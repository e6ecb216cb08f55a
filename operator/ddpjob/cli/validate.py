"""`ddpjob validate`: the checks of the API server and of the operator."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddpjob import why
from ddpjob.cli.exits import Exit, exit_code
from ddpjob.cli.job_options import in_namespace
from ddpjob.cli.options import FileNames, Place, Recorded, bad, files_of
from ddpjob.cli.output import as_text, document, note, say
from ddpjob.errors import AlreadyExists, Conflict, Forbidden, InvalidJob, Refused
from ddpjob.text import printable

if TYPE_CHECKING:
    from ddpjob.client.client import Client
    from ddpjob.client.jobfile import JobFile
    from ddpjob.pods.allowlist import Policy

# In place of a field, for what the API server has refused.
SERVER = "(server)"


def validate(
    place: Place,
    files: Annotated[
        list[str] | None, typer.Argument(help="Job files, YAML or JSON. - is standard input.")
    ] = None,
    filename: FileNames = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="File with the installation's allow-list: policy.json of the ConfigMap "
            "ddpjob-operator-policy. By default the chart's defaults apply.",
        ),
    ] = None,
    code: Annotated[
        list[Path] | None,
        typer.Option(
            help="Archive that spec.code stands for. Give the option once for each part, in order.",
        ),
    ] = None,
    server: Annotated[
        bool,
        typer.Option(
            "--server", help="Have the API server check the valid jobs too. It stores none."
        ),
    ] = False,
    output: Recorded = "text",
) -> None:
    """Check job files by the rules of the API server and of the operator, without a cluster.

    The ConfigMaps with a job's code may stand beside it. Each broken rule is printed with its field
    and value. The exit code is 0 if all files are valid, and 2 if one is not. --server asks for
    what only a cluster knows: rights, and what refuses DDPJobs there (admission, quotas of them).
    Whether it takes their pods turns out when they are created. The exit code is 5 if a job is
    refused, and 4 without a login or a right.
    """
    judge = Judge(
        policy=_policy(policy) if policy else None,
        archive=[_content(part, "--code") for part in code or ()],
        place=place if server else None,
    )
    found: list[Problem] = []
    for file in files_of(files, filename):
        problems = list(judge.problems(file))
        found += problems
        if output == "text":
            say(*map(str, problems), err=True)
            if not problems:
                say(f"{file}: ok")
    if output == "json":
        listed = [problem.record() for problem in found]
        document(as_text({"ok": not listed, "problems": listed}, "json"))
    codes = {problem.code for problem in found}
    raise typer.Exit(Exit.USAGE if Exit.USAGE in codes else min(codes, default=Exit.OK))


@dataclass(frozen=True)
class Problem:
    """A rule that a job breaks, or its file."""

    file: str
    job: str | None
    """Namespace and name; None for a problem of the whole file, and for a job without a name."""
    error: InvalidJob
    code: Exit = Exit.USAGE

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.file, self.job, str(self.error))))

    def record(self) -> dict[str, str | None]:
        """Return the problem as JSON has it."""
        return {
            "file": printable(self.file),
            "job": self.job,
            "field": self.error.path,
            "rule": self.error.rule,
        }


@dataclass(frozen=True)
class Judge:
    """By what the jobs are judged."""

    policy: "Policy | None"
    """The installation's allow-list, by default that of the chart."""
    archive: list[bytes]
    """The parts of the archive that `spec.code` stands for."""
    place: Place | None
    """The cluster whose API server is asked too."""

    def problems(self, file: str) -> Iterator[Problem]:
        """Yield what is wrong with a file."""
        from ddpjob.client.jobfile import parted, unnamed
        from ddpjob.documents import documents

        try:
            jobs, config_maps = parted(documents(file))
        except InvalidJob as error:
            yield Problem(file, None, error)
            return
        for job in jobs:
            for problem, code in self._of_job(job, config_maps):
                yield Problem(file, _title(job), problem, code)
        for problem in unnamed(jobs, config_maps):
            yield Problem(file, None, problem)
        if not (jobs or config_maps):
            yield Problem(file, None, InvalidJob("(file)", "has no object"))

    def _of_job(self, job: Any, config_maps: list[Any]) -> Iterator[tuple[InvalidJob, Exit]]:
        """Yield the rules that a job breaks, and the exit codes that they lead to."""
        from ddpjob.client.jobfile import with_code_of
        from ddpjob.code.archive import verify

        problems = check(job, self.policy)
        try:
            if self.archive and not problems:
                digest = why.text(job, "spec", "code", "sha256")
                verify(self.archive, digest, where="spec.code")
        except InvalidJob as error:
            problems.append(error)
        for problem in problems:
            yield problem, Exit.USAGE
        if self.place and not problems:
            yield from self._of_server(with_code_of(job, config_maps))

    def _of_server(self, job: "JobFile") -> Iterator[tuple[InvalidJob, Exit]]:
        """Yield why the API server refuses to create the job. Raises DDPJobError.

        What it would say of every job is raised, such as a missing right.
        """
        assert self.place
        try:
            in_namespace(job.job, self.place.namespace)
            self._client.submit(job, dry_run=True)
        except AlreadyExists:  # all else was checked before
            title = _title(job.job)
            note(f"{title}: exists already; whether it may be changed so is not checked")
        except InvalidJob as error:
            yield error, Exit.USAGE
        except Forbidden:
            raise
        except (Conflict, Refused) as error:
            yield InvalidJob(SERVER, error.message), exit_code(error)

    @cached_property
    def _client(self) -> "Client":
        assert self.place
        return self.place.client()


def check(job: Any, policy: "Policy | None" = None) -> list[InvalidJob]:
    """Return an InvalidJob for each rule that this object breaks; its pods are judged last.

    `policy` is the installation's allow-list, by default that of the chart.
    """
    from ddpjob import api  # the models are slow to import
    from ddpjob.pods import render
    from ddpjob.pods.allowlist import Policy

    if problems := api.validate(job):
        return problems
    return render.problems(api.DDPJob.parse(job), policy or Policy())


def _policy(path: Path) -> "Policy":
    """Return the allow-list in a file. Raises BadParameter."""
    from ddpjob.pods.allowlist import parse_policy

    try:
        return parse_policy(_content(path, "--policy"))
    except ValueError as error:
        raise bad(f"{path}: {error}", "--policy") from None


def _content(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise bad(f"{path}: {error.strerror}", option) from None


def _title(job: Any) -> str | None:
    """Return the job's name, after its namespace if it has one; None without a name."""
    name, namespace = (why.text(job, "metadata", part) for part in ("name", "namespace"))
    return f"{namespace}/{name}" if name and namespace else name or None
