"""`launch`: a function, a module or a script becomes a job, in a cluster or on this machine."""

import json
import os
import queue
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from ddpjob import names
from ddpjob.client.client import Client
from ddpjob.client.display import News
from ddpjob.client.job import Job
from ddpjob.client.jobfile import named
from ddpjob.client.run import Run, refuse
from ddpjob.client.snapshot import Snapshot
from ddpjob.cluster.connection import Connection
from ddpjob.cluster.login import Login
from ddpjob.cluster.logs import LineMaker, LogLine, local_pod
from ddpjob.cluster.threads import Pipe
from ddpjob.code.functions import SCRIPT, describe
from ddpjob.errors import DDPJobError, InvalidJob, Refused
from ddpjob.json_depth import Body
from ddpjob.times import timestamp

# The folder of runs, in that of the code.
RUNS = ".ddpjob"
# Lines of the command that are no records and are kept, and its exit code before a job begins.
NOTES, BAD_INPUT = 20, 2
# Seconds between two looks at a log that is followed.
LOOK_SECONDS = 0.2


class LocalRun(Run):
    """A job that runs on this machine, as long as this program does."""

    def __init__(self, job: Body, folder: Path, files: Mapping[str, bytes]) -> None:
        """Run the job, with `folder` as the working folder of its ranks.

        `files`, if any, are written into a folder for the run, and SCRIPT among them is run.
        """
        started = {"creationTimestamp": timestamp(time.time()), "namespace": "default"}
        super().__init__(_Nowhere(), {**job, "metadata": {**job["metadata"], **started}})
        self._root = (folder / RUNS).absolute()
        self._changed = threading.Condition()
        self._queues: list[queue.SimpleQueue[News | None]] = []
        self._notes = deque[str](maxlen=NOTES)
        place = _write(self._root, job, files)
        self._process = _start(place / "job.json", self._root, folder)
        self._finalize = weakref.finalize(self, _end, self._process, place)
        self._is_over = False
        threading.Thread(target=self._read, daemon=True).start()

    def refresh(self) -> Job:
        """Return the run as it is now. Raises InvalidJob if it was refused."""
        if self._is_over and not self.is_finished and self._process.wait() == BAD_INPUT:
            raise InvalidJob("launch", "; ".join(self._notes) or "the job was refused")
        return self

    def logs(
        self,
        *,
        rank: int | str | None = None,
        attempt: int | str = "current",
        follow: bool = False,
        tail: int | None = None,
        since: float | None = None,
        container: str | None = None,
    ) -> Iterator[LogLine]:
        """Yield lines of the pod of a rank, by default of rank 0. They have no times.

        `attempt` is a number or `current`. Raises InvalidJob for what a local run does not have:
        several ranks at once, times, and other containers than the trainer.
        """
        text = str(rank or 0)
        is_other = container not in (None, names.TRAINER_CONTAINER)
        if is_other or not text.isdecimal() or since is not None:
            rule = "of a local run are those of one rank of the trainer, and have no times"
            raise InvalidJob("logs", rule)
        number = self.attempt if attempt == "current" else int(attempt)
        processes = self.processes_per_node
        pod = local_pod(self.name, number, int(text) // processes)
        maker = LineMaker(pod, processes, from_the_beginning=True)
        log = self._root / self.name / "logs" / f"{pod.name}.log"
        texts = _lines(log, lambda: follow and not self._is_over)
        made = (maker.line(each.encode(errors="replace")) for each in texts)
        found = (line for line in made if line.rank in (int(text), None))
        yield from found if tail is None else deque(found, maxlen=tail)

    def delete(self) -> None:
        """End the processes, which may save before, and wait until they have ended."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        self._process.wait()

    @contextmanager
    def news(self) -> Iterator[Pipe[News]]:
        """Yield a pipe of what happens to the run, for displays."""
        pipe, own = Pipe[News](), queue.SimpleQueue[News | None]()
        with self._changed:
            self._queues.append(own)
            if self._is_over:
                own.put(None)
        try:
            pipe.read(lambda: iter(own.get, None))
            yield pipe
            self.refresh()
        finally:
            pipe.close()
            with self._changed:
                self._queues.remove(own)
            own.put(None)

    def ways_back(self) -> list[str]:
        """Return lines that say how to come back to the run, for displays."""
        lines = ["  .follow() shows it again, .result() waits, .delete() ends it"]
        return [f"detached: {self.name} runs on, as long as this program does", *lines]

    def _changes(
        self, deadline: float | None, refused_after: float | None = None
    ) -> Generator[Job, None, None]:
        while deadline is None or time.monotonic() < deadline:
            with self._changed:
                body, is_over = self.body, self._is_over
            yield self.refresh()
            if is_over and not self.is_finished:
                raise DDPJobError(f"{self.name} was ended: {'; '.join(self._notes)}")
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            with self._changed:
                while self.body is body and self._is_over == is_over:
                    if not self._changed.wait(left):
                        break

    def _read(self) -> None:
        """Take each line of the process, until it ends."""
        assert self._process.stdout
        with self._process.stdout as output:
            for line in output:
                with self._changed:
                    self._tell(self._news_of(line.rstrip("\n")))
        self._process.wait()
        with self._changed:
            self._is_over = True
            self._finalize()
            self._tell(None)

    def _tell(self, item: News | None) -> None:
        for each in self._queues:
            each.put(item)
        self._changed.notify_all()

    def _news_of(self, text: str) -> News:
        try:
            record = dict(json.loads(text))
        except (ValueError, TypeError):  # an error, or a warning of Python's, say
            self._notes.append(text)
            return text
        if "status" in record:
            self.body = {**self.body, "status": record["status"]}
            return Snapshot(self.body)
        if "line" in record:
            pod = local_pod(self.name, record["attempt"], record["nodeRank"])
            place = pod.attempt, record["round"], record["rank"], pod.node_rank, pod.node, pod.name
            return LogLine("", *place, record["line"].encode(errors="replace"))
        return str(record.get("note", ""))


class _Nowhere(Connection):
    """The connection of a job that is in no cluster: every request is refused."""

    @property
    def login(self) -> Login:
        raise Refused(0, "Local", "the job runs on this machine, and in no cluster")


def _write(root: Path, job: Body, files: Mapping[str, bytes]) -> Path:
    """Write job and files into a new folder, and return it."""
    root.mkdir(exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=".files-", dir=root))
    for path, content in files.items():
        (place / path).write_bytes(content)
    spec = job["spec"]
    if files:  # they lie elsewhere than the folder, which stays as it is
        spec = {**spec, "args": [str(place / SCRIPT), *spec["args"][1:]]}
    (place / "job.json").write_text(json.dumps({**job, "spec": spec}))
    return place


def _start(job: Path, root: Path, folder: Path) -> subprocess.Popen[str]:
    """Start the command, apart from the terminal's and the notebook's interrupts."""
    options = ["--output", "json", "--directory", str(root), "--code", str(folder)]
    return subprocess.Popen(
        # -P: no module of the folder is taken for one of ours.
        [sys.executable, "-P", "-m", "ddpjob", "run", *options, str(job)],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _end(process: "subprocess.Popen[str]", place: Path) -> None:
    """End the process if it still runs, and remove the files of the run."""
    process.terminate()
    shutil.rmtree(place, ignore_errors=True)


def _lines(path: Path, goes_on: Callable[[], bool]) -> Iterable[str]:
    """Yield the lines of a file, and those that come, for as long as it goes on."""
    while not path.exists():
        if not goes_on():
            return
        time.sleep(LOOK_SECONDS)
    with path.open(errors="replace") as file:
        rest, is_over = "", False
        while not is_over:
            is_over = not goes_on()
            for piece in file:
                rest += piece
                if rest.endswith("\n"):
                    yield rest.rstrip("\n")
                    rest = ""
            if not is_over:
                time.sleep(LOOK_SECONDS)
        if rest:
            yield rest


Program = Callable[..., Any] | ModuleType | str | Path
# Set in each process of a job by the operator.
IN_A_JOB = "DDPJOB_ATTEMPT"
# A file that makes the archive of each call in kept pods another one: equal ones are no edit.
NONCE = ".ddpjob-call"


def launch(
    fn_or_module: Program,
    /,
    *args: Any,
    job: Job | None = None,
    keep_seconds: int | None = None,
    nnodes: int | None = None,
    gpus: int | None = None,
    image: str | None = None,
    name: str | None = None,
    code: str | Path | None = ".",
    code_include: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    env_from_secret: Sequence[str] = (),
    checkpoint: str | None = None,
    spec: Mapping[str, Any] | None = None,
    on: Literal["cluster", "local"] = "cluster",
    client: Client | None = None,
    stream: bool = True,
    wait: bool = True,
    timeout: float | None = None,
    **kwargs: Any,
) -> Run:
    """Run a function in every rank of a job, and return the job once the function has ended well.

    Args:
        fn_or_module: A function; a module, or its name, which is run as `python -m`; or a script,
            as a path or a text that ends with `.py`. A function of a notebook is sent by its source
            together with the functions, classes, imports and constants that it uses.
        args: Arguments of the function, which are JSON; of a script, its command line.
        job: A job in whose pods the function runs, such as an earlier `launch` has returned. It
            replaces what still runs there. Beside it, options of the job cannot be given.
        keep_seconds: Seconds for which the job keeps its pods after a function, for the next one.
            Then a failure is not tried again, unless `spec` has a `failurePolicy`.
        nnodes: The number of nodes, by default 1. Each is one pod, with a process for each GPU.
        gpus: GPUs of each node.
        image: An image with python3 and torch. On this machine it is of no effect.
        name: The job's name. By default it is made of the function's: `train-k7x2p`.
        code: The folder that is sent. It is the ranks' working directory, and on PYTHONPATH. With
            None nothing is sent but the function.
        code_include: Files of it that are sent though they are ignored, or may hold secrets.
        env: Environment variables of the ranks.
        env_from_secret: Secrets whose keys become environment variables.
        checkpoint: A claim for checkpoints, as `CLAIM` or `CLAIM:PATH`.
        spec: Further fields of the job's spec, as in YAML: `{"failurePolicy": {"maxRestarts": 1}}`.
        on: `cluster`, or `local` for processes of this machine, which end with this program.
        client: The cluster and the namespace, as `Client(namespace="team-a")`. By default they are
            those of the kubeconfig's context.
        stream: Whether to show the job while it is waited for.
        wait: Whether to wait for its end. An interrupt of a notebook ends the waiting alone, and
            returns the job, which runs on.
        timeout: Seconds to wait. The job runs on after that.
        kwargs: Keyword arguments of the function, which are JSON.

    Raises:
        InvalidJob: For a function or an argument that cannot be sent, and for what breaks a rule.
        JobFailed: If the function fails. Its attribute `job` is the run.
        JobTimeout: After `timeout` seconds. Its attribute `job` is the run.
        Conflict: If the pods of `job` are gone, or another call has replaced this one.
        ClusterError: Such as Forbidden, AlreadyExists or NotFound, if the job is deleted.
    """
    # These take long to import.
    from ddpjob.client.build import JobOptions, build_job, problems
    from ddpjob.code.archive import pack

    if IN_A_JOB in os.environ:
        raise DDPJobError(
            "launch was called by a job's own code, when it was imported: call it below "
            'if __name__ == "__main__"'
        )
    if on not in ("cluster", "local"):
        raise InvalidJob("launch", f"on must be 'cluster' or 'local', got {on!r}")
    if isinstance(job, LocalRun) or on == "local" and (job is not None or keep_seconds):
        rule = "a run on this machine keeps no pods: job and keep_seconds need a cluster"
        raise InvalidJob("launch", rule)
    folder = None if code is None else Path(code).expanduser().absolute()
    words, files, title = _program(fn_or_module, args, kwargs, folder or Path.cwd())
    if job is not None:
        asked = {"nnodes": nnodes, "gpus": gpus, "keep_seconds": keep_seconds, "spec": spec}
        texts = {"image": image, "name": name, "checkpoint": checkpoint, "client": client}
        refuse({**asked, **texts, "env_from_secret": env_from_secret or None})
        files = {**files, NONCE: secrets.token_bytes(16)}
        archive = pack(folder, names=code_include, extra=files)
        run = Run.within(job, words, archive, env or {}, timeout)
    else:
        options = JobOptions(
            args=words,
            name=name,
            image=image or (None if on == "cluster" else "local"),
            nnodes=1 if nnodes is None else nnodes,
            gpus=gpus,
            checkpoint=checkpoint,
            env=env or {},
            env_from_secret=env_from_secret,
        )
        if keep_seconds is not None:
            # An error shows at once, and the next call tries again.
            once = {"failurePolicy": {"maxRestarts": 0}}
            spec = {**once, **(spec or {}), "keepSeconds": keep_seconds}
        base = {"apiVersion": names.API_VERSION, "kind": names.KIND, "spec": spec or {}}
        body = build_job(options, {**base, "metadata": {"generateName": f"{title}-"}})
        for problem in problems(body):
            raise problem
        if on == "local":
            run = LocalRun(named(body), folder or Path.cwd(), files)
        else:
            sends = bool(folder or files)
            code_sent = pack(folder, names=code_include, extra=files) if sends else None
            client = client or Client()
            run = Run(client.connection, client.submit(body, code=code_sent).body)
    if wait and stream:
        run.follow(timeout=timeout)
        run.raise_if_failed()
    elif wait:
        run.wait(timeout=timeout)
    return run


def _program(
    program: Program, args: Sequence[Any], kwargs: Mapping[str, Any], folder: Path
) -> tuple[list[str], dict[str, bytes], str]:
    """Return the launcher's arguments, files that are sent, and how the job's name begins."""
    from ddpjob.client.build import stem

    if callable(program) and not isinstance(program, ModuleType):
        call = describe(program, args, kwargs, folder)
        return [SCRIPT], call.files(), stem([f"{call.name}.py"])
    if kwargs:
        rule = f"a script takes no keyword arguments: {next(iter(kwargs))}"
        raise InvalidJob("launch", f"{rule}; fields of the job belong into spec={{...}}")
    text = program.__name__ if isinstance(program, ModuleType) else str(program)
    is_script = isinstance(program, Path) or text.endswith(".py")
    words = [text] if is_script else ["-m", text]
    if is_script and Path(text).is_absolute():
        words = [os.path.relpath(text, folder)]
    if is_script and not (folder / words[0]).is_file():
        raise InvalidJob("launch", f"there is no script {text!r} in {str(folder)!r}")
    return [*words, *map(str, args)], {}, stem(words)
