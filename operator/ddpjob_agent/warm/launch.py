"""Runs torchrun as a function: `agent.pyz launch ARGS…`, in a process that the agent starts.

So its failures are data: who ended how, and why torchrun gave up, in launch.json in the run folder
($DDPJOB_RUN_DIR). Exit codes: 0, or 1 and launch.json says why; else torchrun's for wrong options.

In the agent's zip, under the same rules: standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import logging
import os
import socket
import sys
import time
from typing import Any, NoReturn

from ddpjob_agent.warm.popen import Popen, replace_popen

# Longer than nodes that begin together are apart. Who is later is waited for by torchrun.
STORE_SECONDS = 3.0
# Between two connections of one node; those of all nodes together are so many a second at most.
PAUSE_SECONDS, MOST_PER_SECOND = 0.01, 5000


class Launch:
    """Keeps in launch.json, for the agent, what happens in torchrun."""

    def __init__(self, run_dir: str) -> None:
        self.path = os.path.join(run_dir, "launch.json")
        self.workers: list[Any] = []
        self.failures: list[dict[str, Any]] = []
        self.error: dict[str, Any] | None = None

    def watch_workers(self) -> None:
        """Remember every worker, and when torchrun stopped it.

        After SIGTERM torchrun forgets its workers' exit codes. Where one has failed it signals the
        process groups of the others; before torch 2.2 it signalled the processes.
        """
        launch = self

        class Worker(Popen):
            ended_at: float | None = None
            stopped_at: float | None = None

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                self.env = kwargs.get("env") or {}
                is_worker = "TORCHELASTIC_RUN_ID" in self.env and "LOCAL_RANK" in self.env
                if is_worker:  # torchrun counts its own restarts, of which there are none
                    restarts = os.environ.get("DDPJOB_RESTARTS", "0")
                    self.env = kwargs["env"] = {**self.env, "TORCHELASTIC_RESTART_COUNT": restarts}
                super().__init__(*args, **kwargs)
                if is_worker:
                    launch.workers.append(self)
                    launch.write()

            def poll(self) -> Any:
                code = super().poll()
                if code is not None and self.ended_at is None:
                    self.ended_at = time.time()
                    with contextlib.suppress(OSError):
                        launch.write()  # the others may train on, or wait for it in vain
                return code

            def send_signal(self, number: int) -> None:
                self.note_stop()
                super().send_signal(number)

            def note_stop(self) -> None:
                if self.stopped_at is None and self.poll() is None:
                    self.stopped_at = time.time()

        replace_popen(Worker)
        self.watch_groups()

    def watch_groups(self) -> None:
        """Remember when a worker's process group is signalled."""
        kill_group = os.killpg

        def killpg(group: int, number: int) -> None:
            for worker in self.workers:
                if worker.pid == group:
                    worker.note_stop()
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and been reaped
                kill_group(group, number)

        os.killpg = killpg

    def write(self) -> None:
        """Replace launch.json."""
        workers = [
            {
                "pid": worker.pid,
                "rank": int(worker.env["RANK"]),
                "local_rank": int(worker.env["LOCAL_RANK"]),
                "exitcode": worker.poll(),
                "ended_at": worker.ended_at,
                "stopped_at": worker.stopped_at,
            }
            for worker in self.workers
        ]
        content = {"workers": workers, "failures": self.failures, "error": self.error}
        os.makedirs(os.path.dirname(self.path), exist_ok=True)  # a rank may have removed it
        with open(self.path + ".tmp", "w") as file:
            json.dump(content, file)
        os.replace(self.path + ".tmp", self.path)

    def run(self, arguments: list[str], unimportable: Exception | None = None) -> int:
        """Run torchrun; its exit code. `unimportable`: why it could not be imported."""
        try:
            if unimportable is not None:
                raise unimportable
            torchrun: Any = importlib.import_module("torch.distributed.run")
        except Exception as error:
            kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
            return self.fail("import", error, f"{sys.executable} has no torchrun: {kind}{error}")
        try:
            options = torchrun.parse_args(arguments)
            check_script(options)
            if os.environ.get("DDPJOB_SUCCESS_POLICY") == "Rank0":
                leave_first()
            wait_for_store(options)
            torchrun.main(arguments)
        except SystemExit as problem:
            code = problem.code if isinstance(problem.code, int) else int(problem.code is not None)
            text = f"torchrun refuses its arguments {arguments}"
            return code and self.fail("arguments", problem, text, exit_code=code)
        except FileNotFoundError as problem:
            return self.fail("arguments", problem, str(problem))
        except BaseException as problem:
            import traceback

            if type(problem).__name__ == "SignalException":
                return 1
            if type(problem).__name__ == "ChildFailedError":
                failures: dict[int, Any] = getattr(problem, "failures", {})
                for rank, failure in failures.items():
                    message = failure.message if isinstance(failure.message, dict) else None
                    told = {"rank": rank, "local_rank": failure.local_rank, "error": message}
                    self.failures.append({**told, "pid": failure.pid, "exitcode": failure.exitcode})
                print(problem, file=sys.stderr, flush=True)  # torchrun's own report
                return 1
            trace = traceback.format_exc()
            return self.fail("run", problem, str(problem), traceback=trace[-4000:])
        return 0

    def fail(self, stage: str, problem: BaseException, message: str, **more: Any) -> int:
        """Remember why torchrun itself gave up; the exit code."""
        self.error = {"stage": stage, "type": type(problem).__name__, "message": message[:4000]}
        self.error.update(more)
        if "traceback" in more:  # the agent prints the message
            print(more["traceback"], file=sys.stderr, flush=True)
        return 1


def leave_first() -> None:
    """Have node rank 0 end with its workers: the job is over then, and nobody waits for the others.

    Every torchrun waits for all to end, for 300 s at most, as node 0 has the group's store.
    """
    if os.environ.get("DDPJOB_NODE_RANK") == "0":
        server: Any = importlib.import_module("torch.distributed.elastic.agent.server.api")
        server.SimpleElasticAgent._exit_barrier = lambda agent: None


def check_script(options: Any) -> None:
    """Raise FileNotFoundError for a missing script before the whole group has met in vain."""
    script = options.training_script
    if options.module:
        sys.path.insert(0, os.getcwd())  # where python -m looks
        if importlib.util.find_spec(script.split(".")[0]) is None:
            raise FileNotFoundError(f"no module {script!r} for {sys.executable}")
    elif not options.no_python and not os.path.exists(script):
        raise FileNotFoundError(f"no script {os.path.abspath(script)!r}")


def wait_for_store(options: Any) -> None:
    """Wait until node rank 0 has opened the group's store. `options`: torchrun's, parsed.

    torch's TCPStore tries again 0.25 to 0.75 s after its first connection was refused. Where all
    nodes begin a round in the same moment, the first one is refused as often as not, and the whole
    group would wait for it.
    """
    try:
        rank, nodes, port = int(options.node_rank), int(options.nnodes), int(options.master_port)
    except ValueError:  # a range of nodes, whose rendezvous is another
        return
    if options.rdzv_backend == "static" and rank > 0:
        wait_until_open(options.master_addr, port, max(PAUSE_SECONDS, nodes / MOST_PER_SECOND))


def wait_until_open(host: str, port: int, pause: float, seconds: float = STORE_SECONDS) -> None:
    """Connect until nobody refuses. Any other problem is torchrun's to tell."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            return socket.create_connection((host, port), timeout=seconds).close()
        except ConnectionRefusedError:
            time.sleep(pause)
        except (OSError, UnicodeError):
            return


def launch_torchrun(arguments: list[str], unimportable: Exception | None = None) -> NoReturn:
    """Run torchrun in this process, keep what happens, and end with its exit code.

    `unimportable`: why it could not be imported. The process ends at once: nothing of ours is left
    to do, and to take Python and torch apart takes 0.8 s, for which every restart would wait.
    """
    del os.environ["DDPJOB_LAUNCHER"]  # the workers have hooks
    sys.argv = ["torchrun", *arguments]
    launch = Launch(os.environ.get("DDPJOB_RUN_DIR", "/ddpjob/run"))
    launch.watch_workers()
    code = 1
    try:
        code = launch.run(arguments, unimportable)
    finally:
        with contextlib.suppress(OSError):  # a full disk fails no training that is done
            launch.write()
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
