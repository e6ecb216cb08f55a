"""Judges jobs by the rules of the API server and of the operator, as `ddpjob validate` does."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ddpjob import api, names
from ddpjob.api.base import below
from ddpjob.cli.asked import in_namespace
from ddpjob.cli.exits import Exit, exit_code
from ddpjob.cli.options import Place, Record
from ddpjob.cli.say import document, note, say
from ddpjob.cli.values import bad
from ddpjob.client import why
from ddpjob.client.client import Client
from ddpjob.client.documents import documents
from ddpjob.client.jobfile import JobFile, parted, unnamed, with_code_of
from ddpjob.client.submit import submit
from ddpjob.code.archive import verify
from ddpjob.errors import AlreadyExists, Conflict, Forbidden, InvalidJob, Refused
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy, parse_policy
from ddpjob.text import printable

# Characters of a namespace, a slash and a name of 253.
MAX_TITLE = 317
NAMELESS = "a job without a name"
# In place of a field, for what the API server has refused.
SERVER = "(server)"
# Without one of these it is not known which volumes and mounts a pod would have.
_VOLUMES = {"volumes", "volumeMounts", "checkpoint", "data", "template", "master"}
_ANY = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "any"}}


@dataclass(frozen=True)
class Problem:
    """A rule that a job breaks, or its file."""

    file: str
    job: str | None
    """Namespace and name; None for a problem of the whole file, and for a job without a name."""
    error: InvalidJob
    is_nameless: bool = False
    code: Exit = Exit.USAGE

    def __str__(self) -> str:
        title = self.job or (NAMELESS if self.is_nameless else "")
        return ": ".join(filter(None, (self.file, title, str(self.error))))

    def record(self) -> dict[str, str | None]:
        """Return the problem as JSON has it."""
        return {
            "file": printable(self.file),
            "job": self.job,
            "field": self.error.path,
            "rule": self.error.rule,
        }


@dataclass(frozen=True)
class Validation:
    """By what the jobs are judged."""

    policy: Policy | None = None
    """The installation's allow-list, by default that of the chart."""
    archive: list[bytes] | None = None
    """The parts of the archive that `spec.code` stands for."""
    place: Place | None = None
    """The cluster whose API server is asked too."""

    def run(self, files: list[str], output: Record) -> Exit:
        """Judge the files, print the problems, and return the exit code."""
        found: list[Problem] = []
        for file in files:
            problems = list(self._of_file(file))
            found += problems
            if output is Record.TEXT:
                say(*map(str, problems), err=True)
                if not problems:
                    say(f"{file}: ok")
        if output is Record.JSON:
            listed = [problem.record() for problem in found]
            document(json.dumps({"ok": not listed, "problems": listed}, indent=2))
        codes = {problem.code for problem in found}
        return Exit.USAGE if Exit.USAGE in codes else min(codes, default=Exit.OK)

    def _of_file(self, file: str) -> Iterator[Problem]:
        """Yield what is wrong with a file. Where it breaks off, what stands before is judged."""
        found: list[Any] = []
        broken: InvalidJob | None = None
        try:
            for each in documents(file):
                found.append(each)
        except InvalidJob as problem:
            broken = problem
        jobs, config_maps = parted(found)
        titles: Counter[str] = Counter()
        for job in jobs:
            name = _name(job)
            is_nameless = name is None and why.part(job, "kind") == names.KIND
            title = f"{file}: {name or NAMELESS}"
            for error, code in self._of_job(job, config_maps, title):
                yield Problem(file, name, error, is_nameless, code)
            if name:
                titles[name] += 1
                if titles[name] == 2:
                    rule = f"duplicate in this file, got {name}"
                    yield Problem(file, name, InvalidJob("metadata.name", rule))
        if broken:  # the job of a ConfigMap may have been in the rest
            yield Problem(file, None, broken)
            return
        for error in unnamed(jobs, config_maps):
            yield Problem(file, None, error)
        if not found:
            yield Problem(file, None, InvalidJob("(file)", "has no object"))

    def _of_job(
        self, job: Any, config_maps: list[Any], title: str
    ) -> Iterator[tuple[InvalidJob, Exit]]:
        """Yield the rules that a job breaks, and the exit codes that they lead to."""
        problems = check(job, self.policy)
        try:
            whole = with_code_of(job, config_maps)
            if not problems:
                self._check_code(job)
        except InvalidJob as error:
            problems.append(error)
        for problem in problems:
            yield problem, Exit.USAGE
        if self.place and not problems:
            yield from self._of_server(whole, title)

    def _check_code(self, job: Any) -> None:
        """Raise InvalidJob if the agent would refuse the archive of a valid job."""
        code = job["spec"].get("code")
        if self.archive is None:
            return
        if not code:
            raise InvalidJob("spec.code", "is required with --code")
        verify(self.archive, code["sha256"], where="spec.code")

    def _of_server(self, job: JobFile, title: str) -> Iterator[tuple[InvalidJob, Exit]]:
        """Yield why the API server refuses to create the job. Raises DDPJobError.

        What it would say of every job is raised, such as a missing right.
        """
        assert self.place
        try:
            in_namespace(job.job, self.place.namespace)
            submit(self._client.connection, job, dry_run=True)
        except AlreadyExists:  # all else was checked before
            note(f"{title}: exists already; whether it may be changed so is not checked")
        except InvalidJob as error:
            yield error, Exit.USAGE
        except Forbidden:
            raise
        except (Conflict, Refused) as error:
            yield InvalidJob(SERVER, error.message), exit_code(error)

    @cached_property
    def _client(self) -> Client:
        assert self.place
        return self.place.client()


def read_policy(path: Path) -> Policy:
    """Return the allow-list in a file. Raises BadParameter."""
    try:
        return parse_policy(path.read_bytes())
    except OSError as error:
        raise bad(f"{path}: {error.strerror}", "--policy") from None
    except ValueError as error:
        raise bad(f"{path}: {error}", "--policy") from None


def read_archive(parts: list[Path]) -> list[bytes]:
    """Return the parts of an archive. Raises BadParameter."""
    found = []
    for path in parts:
        try:
            found.append(path.read_bytes())
        except OSError as error:
            raise bad(f"{path}: {error.strerror}", "--code") from None
    return found


def _name(job: Any) -> str | None:
    """Return the object's name, after its namespace if it has one; None without a name."""
    metadata = job.get("metadata") if isinstance(job, dict) else None
    if not isinstance(metadata, dict) or not metadata.get("name"):
        return None
    name = "/".join(str(metadata[part]) for part in ("namespace", "name") if metadata.get(part))
    return printable(below(name).removeprefix("."), MAX_TITLE)


def check(document: Any, policy: Policy | None = None) -> list[InvalidJob]:
    """Return an InvalidJob for each rule that this object breaks.

    `policy` is the installation's allow-list, by default that of the chart.
    """
    problems = api.validate(document)
    try:
        job = api.DDPJob.parse(_without(document, problems) if problems else document)
    except InvalidJob:
        return problems
    return problems + render.problems(job, policy or Policy())


def _without(document: Any, problems: list[InvalidJob]) -> dict[str, Any]:
    """Return a job with those fields of the spec that no problem is about.

    Its pods can be judged, so that a user reads of what is wrong with them too. It is empty if they
    cannot be judged.
    """
    broken = {match[1] for p in problems if (match := re.match(r"spec[.](\w+)", p.path))}
    spec = document.get("spec") if isinstance(document, dict) else None
    if not isinstance(spec, dict) or broken & _VOLUMES:
        return {}
    kept = {name: value for name, value in spec.items() if name not in broken}
    return _ANY | {"spec": {"image": "any", "args": ["any"]} | kept}
