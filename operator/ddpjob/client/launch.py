"""`launch`: a function, a module or a script becomes a job, in a cluster or on this machine."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from ddpjob import names
from ddpjob.client.client import Client
from ddpjob.client.generated import named
from ddpjob.client.job import Run
from ddpjob.client.local import FILES, LocalRun
from ddpjob.code.functions import SCRIPT, describe
from ddpjob.errors import DDPJobError, InvalidJob
from ddpjob.json_depth import Body

Program = Callable[..., Any] | ModuleType | str | Path
# Set in each process of a job by the operator.
IN_A_JOB = "DDPJOB_ATTEMPT"


def launch(
    fn_or_module: Program,
    /,
    *args: Any,
    nnodes: int = 1,
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
    """Run a function in every rank of a job, and return the job once it has succeeded.

    Args:
        fn_or_module: A function; a module, or its name, which is run as `python -m`; or a script,
            as a path or a text that ends with `.py`. A function of a notebook is sent by its source
            together with the functions, classes, imports and constants that it uses.
        args: Arguments of the function, which are JSON; of a script, its command line.
        nnodes: The number of nodes. Each is one pod, with a process for each of its GPUs.
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
        JobFailed: If the job fails. Its attribute `job` is the run.
        JobTimeout: After `timeout` seconds. Its attribute `job` is the run.
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
    folder = None if code is None else Path(code).expanduser().absolute()
    words, files, title = _program(fn_or_module, args, kwargs, folder or Path.cwd())
    options = JobOptions(
        args=words,
        name=name,
        image=image or (None if on == "cluster" else "local"),
        nnodes=nnodes,
        gpus=gpus,
        checkpoint=checkpoint,
        env=env or {},
        env_from_secret=env_from_secret,
    )
    base = {"apiVersion": names.API_VERSION, "kind": names.KIND, "spec": spec or {}}
    job = build_job(options, {**base, "metadata": {"generateName": f"{title}-"}})
    for problem in problems(job):
        raise problem
    if on == "local":
        run: Run = _run_here(job, folder or Path.cwd(), files)
    elif on == "cluster":
        sends = bool(folder or files)
        archive = pack(folder, names=code_include, extra=files) if sends else None
        client = client or Client()
        run = Run(client.connection, client.submit(job, code=archive).body)
    else:
        raise InvalidJob("launch", f"on must be 'cluster' or 'local', got {on!r}")
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


def _run_here(job: Body, folder: Path, files: Mapping[str, bytes]) -> LocalRun:
    """Run the job as processes of this machine."""
    spec = {**job["spec"]}
    if files:  # they lie elsewhere than the folder, which stays as it is
        spec["args"] = [f"{FILES}/{SCRIPT}", *spec["args"][1:]]
    return LocalRun(named({**job, "spec": spec}), folder, files)
