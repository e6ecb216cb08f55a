"""Runs inside every pod: `python3 -u agent.pyz torchrun -- ARGS…` or `… command -- CMD…`.

It starts the launcher at once, says what the launcher waits for, serves /progress, /metrics and
/stacks, ends the attempt where no step is made for too long, forwards signals, reaps orphans (it is
PID 1), and ends with a documented exit code and one JSON summary in the termination log. Formats
and codes: docs/progress.md. All settings come from the environment.

Mounted into images of other people: standard library only, Python 3.8 or newer, no import of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import itertools
import json
import marshal
import math
import os
import re
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Iterator, Mapping  # noqa: UP035 - Python 3.8

# Exit codes; else 128 + signal.
OK, USER_ERROR, SAVED, HANG, NO_RENDEZVOUS, OUT_OF_MEMORY, TERMINATED = (0, 1, 75, 76, 77, 137, 143)
PROGRESS_BYTES = 16 * 1024
SUMMARY_BYTES = 4096  # the kubelet keeps no more
RECORD_BYTES = 128 * 1024  # of a hook's; two texts of 4000 characters, and some shorter ones
FILES = 20_000  # of the run folder, which is the script's too
METRICS, METRIC_NAME_CHARS = 32, 63
RENDEZVOUS_SECONDS = 900  # torchrun's own limit for a static rendezvous
LOOK_SECONDS = 5.0  # before each look for the master's name, the first too; see MasterWatch
SAY_SECONDS = 15.0  # between two lines that say what is waited for
SAY_MOST_SECONDS = 1800.0  # likewise where nothing ends the wait
POLL_SECONDS = 0.5
LINGER_SECONDS = 4.0  # after a hang, of ranks that wait for others: the others are yet to be judged
ENDING_SECONDS = 10.0  # what a rank may take to end after its exception, before it counts as hung
LAST_SECONDS = 3.0  # of the grace period, kept to write the summary
# Python stacks are asked for by a signal that nobody else uses: scripts have SIGUSR1 and SIGUSR2
# for purposes of their own (submitit requeues, Kineto profiles).
STACK_SIGNAL = int(getattr(signal, "SIGRTMAX", signal.SIGUSR2))
HERE = os.path.dirname(os.path.abspath(__file__))
HOOKS = os.path.join(HERE, "hooks")
HOOK_FILES = ("sitecustomize.py", "ddpjob_ends.py", "ddpjob_counts.py")
CACHES = ("HOME", "HF_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")


def say(text: str) -> None:
    """One line on stderr, which is the pod's log."""
    print("ddpjob-agent: " + text, file=sys.stderr, flush=True)


def read_text(path: str) -> str:
    """The text in a file of the system, empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


CGROUPS = "/sys/fs/cgroup"


def memory_cgroup(v1: str, v2: str) -> str:
    """What stands in a file of this process's memory cgroup, which has two names."""
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, name = (f"{CGROUPS}/memory", v1) if controllers else (CGROUPS, v2)
        for folder in (mount + path, mount):  # in a container the path may be the host's
            text = read_text(f"{folder.rstrip('/')}/{name}")
            if text:
                return text
    return ""


def oom_kills() -> int:
    """How many processes of this cgroup the kernel has killed for want of memory."""
    match = re.search(
        r"^oom_kill (\d+)$", memory_cgroup("memory.oom_control", "memory.events"), re.M
    )
    return int(match.group(1)) if match else 0


def memory_limit() -> int | None:
    """The cgroup's limit in bytes; None without one."""
    text = memory_cgroup("memory.limit_in_bytes", "memory.max").strip()
    return int(text) if text.isdigit() and int(text) < 2**60 else None


# ---- Environment


class ConfigError(ValueError):
    """What is wrong with the environment or the command line: every broken rule."""


@dataclass(frozen=True)
class Config:
    """The environment that the operator sets, read once."""

    job: str
    namespace: str
    attempt: int
    node_rank: int
    nnodes: int
    nproc_per_node: int
    master_addr: str
    master_port: int
    run_dir: str
    progress_file: str
    count_steps: bool
    pod_ip: str
    agent_port: int
    grace_seconds: int
    termination_log: str
    rendezvous_seconds: int
    hang_seconds: int
    """Without a step for so long the attempt ends; 0: for ever."""

    @staticmethod
    def from_env(env: Mapping[str, str]) -> Config:
        """Read and check `env`. Raises ConfigError."""
        problems: list[str] = []

        def text(name: str, default: str = "") -> str:
            if not (env.get(name) or default):
                problems.append(f"{name} is not set")
            return env.get(name) or default

        def whole(name: str, least: int, default: object = "", most: int = 2**31 - 1) -> int:
            value = text(name, str(default))
            if re.match(r"[0-9]{1,10}\Z", value) and least <= int(value) <= most:
                return int(value)
            if value:
                rule = f"must be an integer from {least} to {most}"
                problems.append(f"{name} {rule}, got {value[:80]!r}")
            return least

        nnodes, nproc = whole("DDPJOB_NNODES", 1), whole("DDPJOB_NPROC_PER_NODE", 1)
        run_dir = text("DDPJOB_RUN_DIR", "/ddpjob/run")
        config = Config(
            job=text("DDPJOB_JOB"),
            namespace=text("DDPJOB_NAMESPACE", "default"),
            attempt=whole("DDPJOB_ATTEMPT", 0),
            node_rank=whole("DDPJOB_NODE_RANK", 0, most=nnodes - 1),
            nnodes=nnodes,
            nproc_per_node=nproc,
            master_addr=text("MASTER_ADDR"),
            master_port=whole("MASTER_PORT", 1, most=65535),
            run_dir=run_dir,
            progress_file=text("DDPJOB_PROGRESS_FILE", os.path.join(run_dir, "progress.json")),
            count_steps=env.get("DDPJOB_PROGRESS") != "file",
            pod_ip=env.get("DDPJOB_POD_IP", ""),
            agent_port=whole("DDPJOB_AGENT_PORT", 1, 29499, 65535),
            grace_seconds=whole("DDPJOB_GRACE_SECONDS", 0, 60),
            termination_log=text("DDPJOB_TERMINATION_LOG", "/dev/termination-log"),
            rendezvous_seconds=whole("DDPJOB_RENDEZVOUS_SECONDS", 1, RENDEZVOUS_SECONDS),
            hang_seconds=whole("DDPJOB_HANG_SECONDS", 0, 0),
        )
        if problems:
            raise ConfigError("; ".join(problems))
        return config

    @property
    def shutdown_seconds(self) -> int:
        """What torchrun grants its workers: 10 s less than the pod has; half of a short grace."""
        grace = self.grace_seconds
        return grace - 10 if grace >= 20 else max(1, grace // 2)


def is_ip(host: str) -> bool:
    """Whether `host` is an IPv4 or IPv6 address."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False


def absolute_name(host: str, namespace: str, resolv_conf: str) -> str:
    """`host` completed by the namespace's search domain (else the first one) and a dot.

    A name without the dot is asked for with every search domain in turn (ndots:5).
    """
    if is_ip(host) or host.endswith(".") or host == "localhost":
        return host
    lines = [line.split() for line in resolv_conf.splitlines()]
    domains = next((words[1:] for words in reversed(lines) if words[:1] == ["search"]), [])
    if not domains:
        return host
    domain = next((d for d in domains if d.startswith(namespace + ".svc.")), domains[0]).strip(".")
    return host + "." if host.endswith("." + domain) else f"{host}.{domain}."


def launcher_env(
    config: Config, env: Mapping[str, str], resolv_conf: str, hooks: str = ""
) -> dict[str, str]:
    """The launcher's environment: absolute master, our hooks, torchrun's time-outs.

    `hooks` is the folder with the compiled ones. HOOKS follows, as the script may empty that.
    """
    result = dict(env)
    result["MASTER_ADDR"] = absolute_name(config.master_addr, config.namespace, resolv_conf)
    if "PET_MASTER_ADDR" in env:
        result["PET_MASTER_ADDR"] = result["MASTER_ADDR"]
    paths = [hooks, HOOKS, env.get("PYTHONPATH", "")]
    result["DDPJOB_HOOKS"] = HOOKS
    result["DDPJOB_STACK_SIGNAL"] = str(STACK_SIGNAL)
    result["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    result.setdefault("PET_RDZV_CONF", f"timeout={config.rendezvous_seconds}")
    result.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(config.shutdown_seconds))
    return result


def compile_hooks(run_dir: str) -> str:
    """A folder with our hooks, compiled for every Python like this one; "" where none can be made.

    HOOKS is a read-only mount: each Python process of the pod would compile them for itself.
    """
    folder = os.path.join(os.path.abspath(run_dir), "hooks")
    if os.pathsep in folder or sys.pycache_prefix is not None:  # Python has its own place for them
        return ""
    loader: Any = globals()["__loader__"]  # the zip's
    umask, is_new = os.umask(0o022), False  # the script may be another user's
    try:
        os.makedirs(folder)  # a new one: another may be anybody's
        is_new = True
        for name in HOOK_FILES:
            path = os.path.join(folder, name)
            source = loader.get_data(os.path.join(HOOKS, name))
            cached = importlib.util.cache_from_source(path)
            os.makedirs(os.path.dirname(cached), exist_ok=True)
            for target, content in ((path, source), (cached, bytecode(source, path))):
                with open(target, "wb") as file:
                    file.write(content)
    except Exception as problem:  # such as a Python that keeps no bytecode at all
        say(f"hooks are compiled in every process: {problem}")
        if is_new:  # on a full disk its bytes are wanted for records
            import shutil  # takes 5 ms

            shutil.rmtree(folder, ignore_errors=True)
        return ""
    finally:
        os.umask(umask)
    return folder


def bytecode(source: bytes, path: str) -> bytes:
    """The .pyc of `source`, of the kind that is checked by the source's hash: PEP 552."""
    header = importlib.util.MAGIC_NUMBER + (0b11).to_bytes(4, "little")
    code = marshal.dumps(compile(source, path, "exec", dont_inherit=True))
    return header + importlib.util.source_hash(source) + code


# ---- What other processes write: hostile until read


def read_json(path: str, limit: int) -> Any:
    """The JSON in a regular file of at most `limit` bytes. Raises OSError or ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO must not block us
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("not a regular file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"larger than {limit} bytes")
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def names_in(folder: str, pattern: str) -> list[str]:
    """Names in `folder` that match, sorted, of its first FILES; none where there is no folder."""
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        found = [e.name for e in itertools.islice(entries, FILES) if re.fullmatch(pattern, e.name)]
    return sorted(found)


def read_records(folder: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Every readable JSON object in the files `<prefix>*.json` of `folder`.

    With `ended_at`, when it was written or its process touched it at its end.
    """
    for name in names_in(folder, re.escape(prefix) + r".*\.json"):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError, ValueError):
            for record in objects([read_json(path, RECORD_BYTES)]):
                yield {**record, "ended_at": os.stat(path).st_mtime}


def objects(value: Any) -> list[dict[str, Any]]:
    """The JSON objects in a list; none where `value` is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def integer(value: Any, least: int = 0, most: int = 2**31 - 1) -> int | None:
    """`value` if it is an integer from `least` to `most`, else None."""
    good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    return value if good else None


def number(value: Any) -> float | None:
    """`value` as a float, NaN and infinities included; None where it is no number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def past(value: Any, now: float) -> float:
    """The unix time `value` if it is one and not after `now`, else `now`."""
    seconds = number(value)
    return seconds if seconds is not None and 0 <= seconds <= now else now


# ---- Progress


STEPS = 2**53 - 1  # the largest integer that every JSON reader keeps


def parse_progress(content: Any) -> tuple[dict[str, Any], list[str]]:
    """The good fields of a progress file, and what is wrong with the others.

    Raises ValueError where there is no step.
    """
    if not isinstance(content, dict) or integer(content.get("step"), 0, STEPS) is None:
        raise ValueError('must be one JSON object with "step", a whole number')
    report: dict[str, Any] = {"step": content["step"]}
    problems: list[str] = []
    for name in ("total_steps", "epoch", "loss", "samples_per_second"):
        value = content.get(name)
        good = integer(value, 1, STEPS) if name == "total_steps" else number(value)
        if good is not None:
            report[name] = good
        elif value is not None:
            rule = "a whole number above 0" if name == "total_steps" else "a number"
            problems.append(f"{name} must be {rule}, got {str(value)[:40]!r}")
    metrics = content.get("metrics")
    pairs = list(metrics.items()) if isinstance(metrics, dict) else []
    good_pairs = [(k, number(v)) for k, v in pairs if 0 < len(k) <= METRIC_NAME_CHARS]
    report["metrics"] = dict([(k, v) for k, v in good_pairs if v is not None][:METRICS])
    if metrics is not None and (not pairs and metrics != {} or len(report["metrics"]) < len(pairs)):
        rule = f"at most {METRICS} numbers with names of at most {METRIC_NAME_CHARS} characters"
        problems.append(f"metrics must be an object of {rule}")
    return report, problems


class Progress:
    """The newest report of the script, else the counted optimizer steps; and how fast they go."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.source = "none"
        self.report: dict[str, Any] = {}
        self.updated_at = 0.0  # unix seconds
        self.eta: float | None = None  # seconds
        self.file: tuple[int, ...] = ()  # as it was read last: mtime, size, inode
        self.first = (0.0, 0)  # monotonic seconds and step of the first report
        self.counted: int | None = None  # steps, by the hooks
        self.signs: set[tuple[int, int, int, int]] = set()  # of life, by the hooks
        self.steps: dict[int, tuple[int, int | None, float]] = {}  # by pid; as in stepped
        self.moved: float | None = None  # monotonic seconds of the last new step, of either source
        self.warned: set[str] = set()

    def poll(self, now: float) -> None:
        """Look for news; `now` is monotonic."""
        try:
            self.poll_file(now)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as problem:
            self.warn(str(problem))
        pages = read_pages(self.config.run_dir)
        for page in pages:
            if page.step != self.steps.get(page.pid, (0,))[0]:
                self.steps[page.pid] = page.step, page.rank, time.time() - POLL_SECONDS
        shown = self.source != "file" and self.config.count_steps
        signs = {(page.pid, page.started, page.step, page.others) for page in pages}
        if signs != self.signs and (shown or self.config.hang_seconds):
            self.signs, self.moved = signs, now
        counted = counted_step(pages) if shown else None
        if counted is not None and counted != self.counted:
            self.counted = counted
            self.take("counted", {"step": counted, "metrics": {}}, time.time(), now)

    def poll_file(self, now: float) -> None:
        """Read the progress file if it has changed."""
        info = os.stat(self.config.progress_file)
        file = (info.st_mtime_ns, info.st_size, info.st_ino)
        if file != self.file:
            self.file = file
            content = read_json(self.config.progress_file, PROGRESS_BYTES)
            report, problems = parse_progress(content)
            self.take("file", report, past(info.st_mtime, time.time()), now)
            for problem in problems:
                self.warn(problem)

    def warn(self, problem: str) -> None:
        """Say each problem once, and no more than a few."""
        if problem not in self.warned and len(self.warned) < 8:
            self.warned.add(problem)
            say(f"progress file {self.config.progress_file}: {problem}")

    def take(self, source: str, report: dict[str, Any], updated_at: float, now: float) -> None:
        """Make `report` the newest one, and estimate the rest from the rate since the first one."""
        step, total = report["step"], report.get("total_steps")
        if step != self.report.get("step"):
            self.moved = now
        if source != self.source or step < self.first[1]:
            self.first = (now, step)
        since, start = self.first
        self.eta = None
        if total is not None and step >= total:
            self.eta = 0.0
        elif total is not None and step > start and now > since:
            self.eta = min(STEPS, round((total - step) * (now - since) / (step - start), 1))
        self.source, self.report, self.updated_at = source, report, updated_at

    def page(self, state: str) -> dict[str, Any]:
        """The object served at /progress."""
        config = self.config
        page: dict[str, Any] = {"version": 1, "namespace": config.namespace, "job": config.job}
        page.update(attempt=config.attempt, node_rank=config.node_rank, state=state)
        page.update(source=self.source, **self.report)
        if self.eta is not None:
            page["eta_seconds"] = self.eta
        if self.report:
            page["updated_at"] = self.updated_at
        return page

    def stepped(self) -> dict[int, tuple[int | None, float]]:
        """The rank of each process that made steps, and the last one's unix time, or earlier."""
        return {pid: (rank, at) for pid, (_, rank, at) in self.steps.items()}

    def still_seconds(self, now: float) -> float:
        """For how long no step has been made; 0 before the first and after the last."""
        return 0.0 if self.moved is None or self.is_complete else now - self.moved

    @property
    def is_complete(self) -> bool:
        """Whether the script has reported its last step."""
        return bool(self.report.get("step", -1) >= self.report.get("total_steps", math.inf))


@dataclass(frozen=True)
class Counted:
    """The page of a process that has made optimizer steps, as agent_counts.py lays it out."""

    pid: int
    step: int
    rank: int | None
    local_rank: int | None
    started: int
    """In the ticks of /proc; -1 where they are not known."""
    others: int
    """Steps of optimizers that have made fewer than another one of the process."""


PAGE, PAGE_MAGIC = struct.Struct("=qqqqqq"), 0x31424F4A504444


def read_pages(folder: str) -> list[Counted]:
    """All readable pages. They are read, not mapped: a file may be cut short at any time."""
    pages = []
    for name in names_in(folder, r"steps-[0-9]{1,10}\.page"):
        with contextlib.suppress(OSError):
            content = read_bytes(os.path.join(folder, name), PAGE.size)
            if len(content) == PAGE.size:
                magic, step, rank, local_rank, started, others = PAGE.unpack(content)
                if magic == PAGE_MAGIC and 0 < step <= STEPS:
                    ranks = integer(rank), integer(local_rank)
                    pages.append(Counted(int(name[6:-5]), step, *ranks, started, others))
    return pages


def read_bytes(path: str, limit: int) -> bytes:
    """The first bytes of a regular file; none of another one. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not block us
    try:
        return os.pread(fd, limit, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


def counted_step(pages: list[Counted]) -> int | None:
    """Steps that were counted in this pod's lowest local rank; None before the first."""
    counts = [(2**31 if p.local_rank is None else p.local_rank, p.step) for p in pages]
    lowest = min(counts)[0] if counts else 0
    return max((step for rank, step in counts if rank == lowest), default=None)


def counting_pids(folder: str) -> list[int]:
    """Of the processes that have made optimizer steps and still live."""
    return [page.pid for page in read_pages(folder) if started_ticks(page.pid) == page.started]


def started_ticks(pid: int) -> int:
    """When a process began, by /proc: pids are used again; -1 where that is not known."""
    words = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(words[19]) if len(words) > 19 and words[19].isdigit() else -1


def is_ending(record: Mapping[str, Any], now: float) -> bool:
    """Whether the process of an uncaught exception still lives, or has ended a moment ago."""
    pid = integer(record.get("pid"))
    state = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] if pid else []
    return state not in ([], ["Z"]) or now - past(record.get("ended_at"), now) < ENDING_SECONDS


def metrics_text(page: Mapping[str, Any], job: str) -> str:
    """`page` in Prometheus' text format."""
    job = job.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    labels = f'{{job="{job}",attempt="{page["attempt"]}",node_rank="{page["node_rank"]}"}}'
    lines: list[str] = []
    for name in ("step", "total_steps", "epoch", "loss", "samples_per_second"):
        if name in page:
            value = float(page[name])
            text = repr(value) if math.isfinite(value) else f"{value:+}"[-4:].title()
            text = "NaN" if math.isnan(value) else text
            lines += [f"# TYPE ddpjob_{name} gauge", f"ddpjob_{name}{labels} {text}"]
    return "\n".join([*lines, ""])


# ---- Failures: which one was first, and which ones are only its echo

# What a rank says when another one has gone, by who says it. [R]: from reports, not seen by us.
# The exception must be one of torch's: a script's ConnectionResetError is its own failure.
TORCH_ERRORS = re.compile(r"RuntimeError|Dist(Backend|Network|Store|)Error")
PEER_NOISE = {
    "gloo": r"(?i)(gloo|\.cc:\d+\]).*((closed|reset) by peer|broken pipe|refused|timed? ?out)"
    r"|timeout caused pair closure|failed to pass monitoredBarrier",
    "nccl [R]": r"remote process exited or there was a network error|ncclRemoteError"
    r"|NCCL communicator was aborted|collective operation timeout|ncclUniqueId.*store->get",
    # One that cannot reach the store tells more than the store, which only waits for it.
    "store": r"Did the remote server shutdown or crash|Socket Timeout"
    r"|socket has timed out(?!.*while trying to connect)"
    r"|wait timeout after|waiting for clients|\A(Broken pipe|Connection reset by peer)",
}
# The same in lines of a log, where no type stands beside them.
LOGGED_NOISE = "|".join(
    (PEER_NOISE["nccl [R]"], PEER_NOISE["gloo"][4:], "Did the remote server shutdown or crash")
)
OWN, SUSPECT, ECHO, STOPPED = 0, 1, 2, 3  # the higher, the less a failure explains
TEXT_CHARS, CAUSES = 4000, 8  # judged of a record: patterns take their time on long texts
ESCAPES = r"\x1b\[[0-9;]*[A-Za-z]"  # colours
PLAIN_CODES = (1, 255)  # sys.exit(1) and exit(-1): the ends of whoever gives no reason
PARSERS = ("argparse", "click.", "typer.")  # their sentence comes last, on stderr
# Programs that only start others, as modules and as commands.
LAUNCHERS = re.compile(
    r"torch\.distributed\.(run|launch)|torchrun|accelerate(\.commands\.\w+)?|accelerate-launch"
)
PASSED_ON_SECONDS = 2.0  # from a child's end to that of a Python process that ends with its code
TIDY_SECONDS = 10.0  # likewise of a shell


def is_peer_noise(exception: str, text: str) -> bool:
    """Whether an exception only says that another rank has gone."""
    heard = any(re.search(pattern, text, re.DOTALL) for pattern in PEER_NOISE.values())
    return heard and TORCH_ERRORS.fullmatch(exception) is not None


def one_line(exception: str, text: str) -> tuple[str, str]:
    """Type and one line, `ValueError: boom`, of an exception's whole message.

    Where it carries the traceback of another process (of a DataLoader worker, of mp.spawn), the
    last line tells what happened there. A first line with a colon at its end only announces.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and "Traceback (most recent call last)" in text:
        match = re.match(r"(?:\w+\.)*([A-Za-z_]\w*)(?:: |\Z)", lines[-1])
        return match.group(1) if match else exception, lines[-1]
    said = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    return exception, f"{exception}: {said}" if said else exception


@dataclass
class Failure:
    """How one process ended that should not have ended so."""

    message: str
    time: float  # unix seconds
    rank: int | None = None
    local_rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    exception: str | None = None
    traceback: str = ""
    grade: int = OWN
    place: str = ""
    """Where it waits for other ranks."""
    stopped: bool = False
    """By torchrun, and it had not failed before; by SIGTERM where torchrun is not ours."""
    launched: bool = True
    """The script itself began."""


@dataclass(frozen=True)
class Verdict:
    """How this pod's part of the attempt ended."""

    reason: str
    agent_exit: int
    failure: Failure


def signal_name(code: int) -> str:
    """SIGKILL for exit status -9; SIG<n> where the number has no name."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"SIG{-code}"


def judge_exception(record: Mapping[str, Any]) -> tuple[int, str, str]:
    """Grade, type and line of a recorded exception, which may come from others.

    Who wraps a peer's noise echoes it. Noise that came while an own exception was handled (a
    barrier in `finally`) says less than that, but that may have been an exception of no account.
    """
    kind, text = str(record.get("type")), str(record.get("message", ""))
    is_of_child = "Traceback (most recent call last)" in text
    text = text[-TEXT_CHARS:] if is_of_child else text[:TEXT_CHARS]
    line = one_line(kind, text)
    links = [(line[0], text)]
    for cause in objects(record.get("causes"))[-CAUSES:]:
        links.append((str(cause.get("type")), str(cause.get("message", ""))[:TEXT_CHARS]))
    heard = [is_peer_noise(*link) for link in links]
    if heard[-1] or not any(heard):
        return (ECHO if heard[-1] else OWN, *line)
    return (SUSPECT, *one_line(*links[-1]))


def judge_words(words: Mapping[str, Any], code: int) -> tuple[int, str]:
    """Grade and text of what a process said as it exited with `code`; without text: unknown."""
    exceptions = objects(words.get("handled"))[-CAUSES:]
    handled = sorted(map(judge_exception, exceptions), key=lambda judged: judged[0])
    text, logged = (
        " ".join(re.sub(ESCAPES, "", str(words.get(name) or "")[:TEXT_CHARS]).split())
        for name in ("message", "stderr")
    )
    is_parser = str(words.get("by")).startswith(PARSERS) and bool(text or logged)
    if is_parser and code not in PLAIN_CODES:
        return OWN, f": {text or logged}"
    if text or handled:
        grade = ECHO if re.search(LOGGED_NOISE, text) else OWN
        return (handled[0][0] if handled else grade), f": {text or handled[0][2]}"
    if logged:
        grade = SUSPECT if code in PLAIN_CODES else OWN
        colon = ": " if is_parser else "; last on stderr: "  # click tells with 1 of any failure
        return (ECHO if re.search(LOGGED_NOISE, logged) else grade), f"{colon}{logged}"
    return (SUSPECT if code in PLAIN_CODES else OWN), ""


def is_launch(words: Mapping[str, Any]) -> bool:
    """Whether no script ever began: none was found, or a launcher refuses its own options."""
    by, asked_by = str(words.get("by")), str(words.get("asked_by"))
    return by in ("python", "runpy") or LAUNCHERS.fullmatch(asked_by) is not None


def lacks_torch(record: Mapping[str, Any]) -> bool:
    """Whether an exception is that of a launcher in an image without torch, or without itself."""
    missing = str(record.get("missing")).split(".")[0]
    program = LAUNCHERS.fullmatch(str(record.get("program")))
    return program is not None and missing in ("torch", "accelerate")


def make_failure(
    worker: Mapping[str, Any],
    record: Mapping[str, Any] | None,
    crowd: bool,
    now: float,
    words: Mapping[str, Any] | None = None,
) -> Failure:
    """The failure of `worker` (rank, local_rank, exitcode, ended_at), with its hook's `record`.

    `words` are those it said as it exited. In a `crowd` an abort without an exception, and an end
    without a reason, may be an echo: NCCL's watchdog and gloo abort after the death of a peer, and
    scripts exit with 1 after they have printed what came to them.
    """
    code = worker.get("exitcode")
    code = code if isinstance(code, int) else 1
    failure = Failure(
        message=f"killed by {signal_name(code)}" if code < 0 else f"exited with code {code}",
        time=past(worker.get("ended_at"), now),
        rank=integer(worker.get("rank")),
        local_rank=integer(worker.get("local_rank")),
        exit_code=None if code < 0 else code,
        signal=signal_name(code) if code < 0 else None,
    )
    if record is not None:
        failure.grade, failure.exception, failure.message = judge_exception(record)
        failure.traceback = str(record.get("traceback", ""))
        failure.time = past(record.get("time"), failure.time)
        failure.launched = not lacks_torch(record)
    elif code > 0 and words is not None and words.get("code") in (code, None):
        failure.launched = not is_launch(words)
        failure.time = past(words.get("time"), failure.time)
        failure.grade, said = judge_words(words, code)
        failure.message += said
    elif failure.signal == "SIGABRT" or code in PLAIN_CODES:
        failure.grade = SUSPECT
    if failure.grade == SUSPECT and not crowd:
        failure.grade = OWN
    if "stopped_at" not in worker:
        failure.stopped = failure.signal == "SIGTERM" and failure.exception is None
    elif worker["stopped_at"] is not None:
        stopped_at = past(worker["stopped_at"], now)
        failure.stopped = failure.exception is None or failure.time >= stopped_at
    return failure


def recorded_by_torch(worker: Mapping[str, Any]) -> dict[str, Any] | None:
    """What torch's `@record` wrote, in the shape of our hook's record."""
    error = worker.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("extraInfo"), dict):
        return None
    kind, _, text = str(error.get("message")).partition(": ")
    return {"type": kind, "message": text, "traceback": error["extraInfo"].get("py_callstack", "")}


def ended_at(record: Mapping[str, Any], now: float) -> float:
    """When the process of a record ended, as far as is known."""
    return past(record.get("ended_at", record.get("time")), now)


def speakers(
    records: list[dict[str, Any]], end: float, stepped: Mapping[int, tuple[int | None, float]]
) -> list[dict[str, Any]]:
    """Of the records of many processes, those that explain an end at `end`.

    Whoever has made steps is a rank. Of the other processes of a rank the last one speaks, if it
    ended shortly before and no step followed: a probe that failed long ago was handled. `stepped`
    has the rank of each process that made steps, and the time of the last.
    """
    last: dict[int | None, dict[str, Any]] = {}
    for record in sorted(records, key=lambda r: ended_at(r, end)):
        last[integer(record.get("rank"))] = record

    def speaks(record: dict[str, Any]) -> bool:
        pid, rank, begun = (record.get(name) for name in ("pid", "rank", "time"))
        if integer(pid) in stepped:
            return True
        steps = [at for of, at in stepped.values() if of == integer(rank)]
        is_last = record is last[integer(rank)] and max(steps, default=0.0) <= past(begun, end)
        return is_last and end - ended_at(record, end) <= TIDY_SECONDS

    return [record for record in records if speaks(record)]


def exit_code_of(record: Mapping[str, Any]) -> int | None:
    """With which code a process with this record ended; 1 after an uncaught exception."""
    return 1 if "type" in record else integer(record.get("code"), 1, 255)


def says_why(words: Mapping[str, Any]) -> bool:
    """Whether somebody exited with words."""
    return any(words.get(name) for name in ("message", "handled", "stderr"))


@dataclass
class Evidence:
    """All that is known of the processes of a pod which ended badly."""

    errors: dict[int | None, dict[str, Any]]
    """Uncaught exceptions, by pid."""
    exits: dict[int | None, dict[str, Any]]
    """Last words, by pid."""
    stepped: Mapping[int, tuple[int | None, float]]
    now: float

    def passed_on(
        self, pid: int | None, worker: Mapping[str, Any], own: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
        """The records of other processes whose end `worker` (`pid`) passed on as its own.

        `own`: how it called `sys.exit`, if it is a Python process. That passes on at once; a shell
        may tidy up before.
        """
        end = past((own or worker).get("time", worker.get("ended_at")), self.now)
        limit = TIDY_SECONDS if own is None else PASSED_ON_SECONDS
        others = [r for r in (*self.errors.values(), *self.exits.values()) if r.get("pid") != pid]
        rank, codes = integer(worker.get("rank")), [worker.get("exitcode")]
        if only_tells_of_child(self.errors.get(pid) or {}):
            codes = list(range(1, 256))
        if rank is not None:
            others = [r for r in others if integer(r.get("rank")) in (rank, None)]
        return [
            record
            for record in speakers(others, end, self.stepped)
            if exit_code_of(record) in codes
            and (integer(record.get("pid")) in self.stepped or end - ended_at(record, end) <= limit)
        ]

    def judge(self, pid: int | None, worker: Mapping[str, Any], crowd: bool) -> list[Failure]:
        """The failure of one worker; several where it only started those that failed."""
        record, words = self.errors.get(pid) or recorded_by_torch(worker), self.exits.get(pid)
        if record is not None and not only_tells_of_child(record) or words and says_why(words):
            return [make_failure(worker, record, crowd, self.now, words)]
        found = []
        for other in self.passed_on(pid, worker, words):
            ranks = {name: other.get(name) for name in ("rank", "local_rank")}
            of = {**worker, **(ranks if worker.get("rank") is None else {})}
            of["exitcode"] = exit_code_of(other)
            is_error = "type" in other
            known = (other, None) if is_error else (None, other)
            found.append(make_failure(of, known[0], crowd, self.now, known[1]))
        return found or [make_failure(worker, record, crowd, self.now, words)]


def only_tells_of_child(record: Mapping[str, Any]) -> bool:
    """Whether a launcher reports that its only process has failed, as accelerate does."""
    is_launcher = LAUNCHERS.fullmatch(str(record.get("program"))) is not None
    return is_launcher and record.get("type") == "CalledProcessError"


def find_failures(
    config: Config,
    launch: Any,
    errors: list[dict[str, Any]],
    launcher: dict[str, Any],
    now: float,
    stepped: Mapping[int, tuple[int | None, float]] | None = None,
) -> list[Failure]:
    """Every failed worker that is known of.

    `launch` is what the torchrun shim wrote, None with another command; `launcher` is the
    launcher's own end, as if it were a worker; `stepped` as for `speakers`.
    """
    exits = list(read_records(config.run_dir, "exit-"))
    by_pid = [{integer(r.get("pid")): r for r in records} for records in (errors, exits)]
    evidence = Evidence(by_pid[0], by_pid[1], stepped or {}, now)
    told = evidence.passed_on(launcher["pid"], launcher, None)  # torchrun, behind a shell
    workers: dict[Any, dict[str, Any]] = {}
    for source in (launch or {}, evidence.errors.get(launcher["pid"]) or {}, *told):
        for worker in objects(source.get("failures")) + objects(source.get("workers")):
            if worker.get("exitcode") not in (0, None):
                workers.setdefault(integer(worker.get("pid")), {}).update(worker)
    if not workers and launch is None:
        workers = {launcher["pid"]: launcher}
    crowd = config.nnodes * config.nproc_per_node > 1
    return [f for pid, worker in workers.items() for f in evidence.judge(pid, worker, crowd)]


def first_cause(failures: list[Failure]) -> Failure:
    """The failure that explains the others: own before echo, then the earliest.

    One that was stopped counts only where nothing else happened: torchrun stops a failed worker's
    siblings.
    """
    if not all(f.stopped for f in failures):
        for failure in failures:
            failure.grade = STOPPED if failure.stopped else failure.grade
    return min(failures, key=lambda f: (f.grade, f.time))


def judge_failures(failures: list[Failure], alone: bool = True) -> Verdict:
    """The verdict on workers that failed; `alone`: there are no other pods to have caused it."""
    first = first_cause(failures)
    if alone:
        first.grade = OWN
    if first.exit_code == SAVED:
        first.message = f"saved and stopped (exit code {SAVED})"
        return Verdict("Preempted", SAVED, first)
    if first.exception is None and first.signal is not None:
        return Verdict("Signal", 128 + getattr(signal, first.signal, 0), first)
    if not first.launched:
        return Verdict("LaunchFailed", USER_ERROR, first)
    return Verdict("Exception" if first.exception else "ExitCode", USER_ERROR, first)


KILLED = re.compile(
    r"killed by signal: Killed|exited unexpectedly|exitcode -9|SIGKILL"
)  # of a helper process


def judge_memory(verdict: Verdict, kills: int) -> Verdict:
    """`verdict`, or OOMKilled where the kernel has meanwhile killed for want of memory.

    With cgroup v1, or the kubelet's singleProcessOOMKill, one process is killed and the agent lives
    to tell; else the whole container is, and the kubelet tells.
    """
    first = verdict.failure
    if kills <= 0 or not (first.signal == "SIGKILL" or KILLED.search(first.message)):
        return verdict
    limit = memory_limit()
    of = "the memory limit" if limit is None else f"the memory limit of {limit / 2**20:.0f} MiB"
    first.message = f"{first.message}: out of memory, by {of}; processes killed for it: {kills}"
    return Verdict("OOMKilled", OUT_OF_MEMORY, first)


def missing_script(command: list[str]) -> str | None:
    """The script that `command` wanted Python to run, if it wanted one and there is none."""
    if not re.match(r"python[0-9.]*\Z", os.path.basename(command[0])):
        return None
    words = iter(command[1:])
    for word in words:
        if word in ("-m", "-c", "-"):
            return None
        if word in ("-W", "-X"):
            next(words, None)
        elif not word.startswith("-"):
            return None if os.path.exists(word) else word
    return None


def judge_torchrun(error: Any, config: Config, code: int, now: float) -> Verdict:
    """The verdict on a torchrun that ended without a failed worker; `error` is its own."""
    if not isinstance(error, dict):
        failure = make_failure({"exitcode": code}, None, False, now)
        failure.message = "torchrun itself was " * (code < 0) + failure.message
        return judge_failures([failure])
    kind, text = str(error.get("type")), str(error.get("message"))
    failure = Failure(text, now, exit_code=integer(error.get("exit_code")))
    if error.get("stage") != "run":
        return Verdict("LaunchFailed", USER_ERROR, failure)
    failure.exception, failure.message = one_line(kind, text)
    failure.traceback = str(error.get("traceback", ""))
    if TORCH_ERRORS.fullmatch(kind) or kind.startswith("Rendezvous"):
        where = f"{config.master_addr}:{config.master_port}"
        failure.message = f"no group of {config.nnodes} nodes at {where}: {failure.message}"
        failure.grade = ECHO if "Did the remote server shutdown or crash" in text else OWN
        return Verdict("Rendezvous", NO_RENDEZVOUS, failure)
    return Verdict("LaunchFailed", USER_ERROR, failure)


def judge_stop(at: float) -> Verdict:
    """The verdict on a pod that SIGTERM ended at `at` (unix seconds) without a word of saving."""
    text = f"stopped by SIGTERM; no worker ended with {SAVED} (saved)"
    return Verdict("Signal", TERMINATED, Failure(text, at, signal="SIGTERM"))


# ---- Summary


def summarize(verdict: Verdict, page: Mapping[str, Any]) -> bytes:
    """The summary as JSON of at most SUMMARY_BYTES.

    The traceback loses its beginning first, then the message its end, then progress its metrics.
    """
    first = verdict.failure
    summary: dict[str, Any] = {
        "version": 1,
        "reason": verdict.reason,
        "rank": first.rank,
        "local_rank": first.local_rank,
        "exit_code": first.exit_code,
        "signal": first.signal,
        "exception": (first.exception or "")[:200] or None,
        "message": first.message[:1000],
        "peer": first.grade > OWN,
        "suspect": first.grade == SUSPECT,
        "place": re.sub(r"[^ -~]", "?", first.place)[:200] or None,
        "time": first.time,
        "progress": dict(page),
        # Last, as what may go: of a pod with many containers the kubelet keeps less of each.
        "traceback": first.traceback.strip(),
    }
    while True:
        encoded = json.dumps(summary, ensure_ascii=False, separators=(",", ":"))
        content = encoded.encode("utf-8", "replace")
        if len(content) <= SUMMARY_BYTES:
            return content
        if summary["traceback"]:
            summary["traceback"] = summary["traceback"][len(summary["traceback"]) // 8 + 1 :]
        elif len(summary["message"]) > 200:
            summary["message"] = summary["message"][:-100]
        else:
            summary["progress"].pop("metrics", None)


def write_summary(path: str, content: bytes) -> None:
    """Write in place: the kubelet mounts the file alone, so that no rename can replace it."""
    try:
        with open(path, "wb") as file:
            file.write(content)
    except OSError as problem:
        say(f"cannot write the summary to {path}: {problem}")


# ---- Network


class MasterWatch(threading.Thread):
    """Looks for the master's name beside the launcher, to say what is missing.

    CoreDNS remembers for 5 to 30 s, for all pods, that a name was asked for before it existed. So
    the launcher, whose imports take seconds, asks first and this thread never does; asking again
    while the absence is remembered neither helps nor prolongs it.
    """

    def __init__(self, host: str, look_seconds: float) -> None:
        super().__init__(daemon=True, name="master-watch")
        self.host, self.look_seconds = host, look_seconds
        self.found = threading.Event()

    def run(self) -> None:
        """Look until the name is found, less and less often. The resolver may block for long."""
        begin = time.monotonic()
        while not self.found.is_set():
            time.sleep(max(self.look_seconds, min(60.0, (time.monotonic() - begin) / 20)))
            with contextlib.suppress(OSError, UnicodeError):
                socket.getaddrinfo(self.host, None)
                self.found.set()


def say_seconds(waited: float, limit: float) -> float:
    """Until it is said again that something is waited for: less and less often without a limit."""
    return SAY_SECONDS if limit < math.inf else max(SAY_SECONDS, min(waited, SAY_MOST_SECONDS))


def serve(agent: Agent) -> None:
    """Serve /progress, /metrics and /stacks in threads.

    A taken port costs progress, not the training.
    """
    import http.server  # takes 40 ms: after the launcher has started

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            if self.path == "/progress":
                kind, body = "application/json", json.dumps(agent.page).encode()
            elif self.path == "/metrics":
                text = metrics_text(agent.page, agent.config.job)
                kind, body = "text/plain; version=0.0.4; charset=utf-8", text.encode()
            elif self.path == "/stacks":
                text = agent.stacks.show(agent.take_stacks())
                kind, body = "text/plain; charset=utf-8", text.encode("utf-8", "replace")
            else:
                return self.send_error(404)
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in agent.config.pod_ip else socket.AF_INET

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that hangs up is no news

    where = (agent.config.pod_ip, agent.config.agent_port)
    try:
        server = Server(where, Handler)
    except OSError as problem:
        return say(f"no /progress on {where[0]}:{where[1]}: {problem}")
    threading.Thread(target=server.serve_forever, daemon=True, name="http").start()


# ---- Processes

LIBC = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def prctl(option: int, value: int) -> None:
    """Linux' prctl; nothing elsewhere."""
    if LIBC is not None:
        LIBC.prctl(option, value, 0, 0, 0)


def children() -> list[int]:
    """Pids of this process's living children, adopted orphans included; on Linux alone."""
    found: list[int] = []
    for pid in filter(str.isdigit, os.listdir("/proc") if LIBC is not None else []):
        state, parent = [*read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[:2], "", ""][:2]
        if parent == str(os.getpid()) and state != "Z":
            found.append(int(pid))
    return found


def kill(pid: int, signal_number: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal_number)


class Agent:
    """One pod's part of one attempt, from start to summary."""

    def __init__(self, config: Config, mode: str, arguments: list[str]) -> None:
        self.config, self.mode, self.arguments = config, mode, arguments
        self.progress = Progress(config)
        self.page = self.progress.page("waiting")
        self.pid = 0  # of the launcher
        self.code: int | None = None  # its exit code, or minus the signal; None while it lives
        self.orphan_codes: set[int] = set()
        self.terminated_at: float | None = None  # unix seconds of the first SIGTERM
        self.deadline = math.inf  # monotonic end of the grace period
        self.started = False  # the training itself runs
        self.expired = ""  # what was not there in time
        self.hung: Verdict | None = None
        self.hung_until = -math.inf  # monotonic: until then the ranks stay where they are
        self.oom_kills = oom_kills()  # before our time; in a pod there are none
        self.stacks_lock = threading.Lock()
        self.watch: MasterWatch | None = None

    def run(self) -> int:
        """Run the launcher to its end, write the summary, and say with which code to exit."""
        self.prepare()
        wake = self.catch_signals()
        try:
            self.start()
        except OSError as problem:
            text = f"cannot start {self.arguments[0]!r}: {problem}"
            return self.finish(Verdict("LaunchFailed", USER_ERROR, Failure(text, time.time())))
        serve(self)
        self.wait(wake)
        self.progress.poll(time.monotonic())
        verdict = self.judge()
        self.kill_rest()
        return self.finish(verdict)

    def prepare(self) -> None:
        """Create the folders that the environment names; empty ours of an earlier run."""
        for name in ("DDPJOB_RUN_DIR", *CACHES):
            try:
                os.makedirs(os.environ.get(name) or self.config.run_dir, exist_ok=True)
            except OSError as problem:
                say(f"{name}: {problem}")
        with contextlib.suppress(OSError):
            for file in os.listdir(self.config.run_dir):
                if re.match(r"(steps-|error-|exit-|launch|progress).*(json|page)", file):
                    os.remove(os.path.join(self.config.run_dir, file))

    def catch_signals(self) -> int:
        """Handle signals from now on; each makes the returned descriptor readable."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans come to us even where we are not PID 1
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for forwarded in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(forwarded, self.forward)
        return reader

    def forward(self, signal_number: int, frame: Any) -> None:
        """Pass a signal on to the launcher; the first one begins the grace period."""
        if self.terminated_at is None:
            self.terminated_at = time.time()
            grace = max(1.0, self.config.grace_seconds - LAST_SECONDS)
            self.deadline = time.monotonic() + grace
            draft = summarize(judge_stop(self.terminated_at), self.page)
            write_summary(self.config.termination_log, draft)  # in case the grace is cut short
        if self.pid and self.code is None:
            kill(self.pid, signal_number)

    def start(self) -> None:
        """Start the launcher in a session of its own. Raises OSError where that is impossible."""
        hooks = compile_hooks(self.config.run_dir)
        env = launcher_env(self.config, os.environ, read_text("/etc/resolv.conf"), hooks)
        command = self.arguments
        if self.mode == "torchrun":
            env["DDPJOB_LAUNCHER"] = "1"  # tells the hooks to leave the shim alone
            command = [sys.executable, "-u", os.path.dirname(HERE), "launch", *command]

        def die_with_agent() -> None:  # local mode leaves no orphans even where the agent is killed
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

        process = subprocess.Popen(
            command, env=env, start_new_session=True, preexec_fn=die_with_agent
        )
        process.returncode = 0  # we reap it: its destructor must not try
        self.pid = process.pid
        if self.config.nnodes > 1 and not is_ip(env["MASTER_ADDR"]):
            look_seconds = min(LOOK_SECONDS, self.config.rendezvous_seconds / 2)
            self.watch = MasterWatch(env["MASTER_ADDR"], look_seconds)
            self.watch.start()
        if self.terminated_at is not None:
            kill(self.pid, signal.SIGTERM)

    def wait(self, wake: int) -> None:
        """Until the launcher, and after SIGTERM all it left behind, has ended or time is up."""
        begin = time.monotonic()
        speaks_at = begin + (SAY_SECONDS if self.config.nnodes == 1 else 0.0)
        told: set[int] = set()
        while self.code is None or (self.terminated_at is not None and children()):
            select.select([wake], [], [], POLL_SECONDS)
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            self.reap()
            now = time.monotonic()
            if now > self.deadline:
                return
            if self.code is not None and self.terminated_at is not None:
                for pid in set(children()) - told:  # the launcher did not pass the signal on
                    told.add(pid)
                    kill(pid, signal.SIGTERM)
            if not self.started and not self.has_started():
                missing, limit = self.missing()
                if now >= speaks_at:
                    of = f" of {limit:.0f} s" if limit < math.inf else "; the training goes on"
                    say(f"waiting for {missing} ({now - begin:.0f} s{of})")
                    speaks_at = now + say_seconds(now - begin, limit)
                if now - begin > limit:
                    self.expired = f"{missing} is not there after {now - begin:.0f} s"
                    return
            else:
                self.started = True
            self.progress.poll(now)
            self.page = self.progress.page("running" if self.started else "waiting")
            is_ending = self.code is not None or self.terminated_at is not None
            if self.hung is not None and (is_ending or now > self.hung_until):
                return
            if self.hung is None and not is_ending and self.stands_still(now):
                self.judge_hang(now)

    def stands_still(self, now: float, *, is_dying: bool = False) -> bool:
        """Whether no step is made for too long; a rank that is dying has a while to end."""
        limit, still = self.config.hang_seconds, self.progress.still_seconds(now)
        if not 0 < limit <= still:
            return False
        if not is_dying:
            errors = read_records(self.config.run_dir, "error-")
            is_dying = any(is_ending(error, time.time()) for error in errors)
        return still >= limit + (ENDING_SECONDS if is_dying else 0.0)

    def judge_hang(self, now: float) -> None:
        """Find out what keeps the ranks of this pod; their stacks go into the log.

        Where all of them wait for others they stay for a moment: once they were gone, a rank
        elsewhere would no longer stand where it was.
        """
        self.page = self.progress.page("stalled")
        still, step = self.progress.still_seconds(now), self.progress.report.get("step")
        processes = self.take_stacks()
        found = self.stacks.culprit(processes)
        if not self.stands_still(now, is_dying=found is None):
            return  # a rank has just ended, or is about to: another pod's end may have reached it
        say(f"Hang: no new step for {still:.0f} s; the stacks of all local ranks:")
        print(self.stacks.show(processes), file=sys.stderr, flush=True)
        message = f"no new step for {still:.0f} s after step {step}"
        if found is None:
            self.hung = Verdict("Hang", HANG, Failure(message, time.time()))
            return
        failure = Failure(
            f"{message}; {self.stacks.explain(found, processes)}",
            time.time(),
            rank=found.rank,
            local_rank=found.local_rank,
            traceback=found.stacks or "\n".join(found.threads),
            grade={self.stacks.OWN: OWN, self.stacks.DEVICE: SUSPECT}.get(found.kind, ECHO),
            place=found.place if found.kind == self.stacks.WAITS else "",
        )
        self.hung = Verdict("Hang", HANG, failure)
        lingers = LINGER_SECONDS if failure.grade > OWN else 0.0
        self.hung_until = time.monotonic() + lingers  # the stacks took their time

    @property
    def stacks(self) -> Any:
        """stacks.py, loaded when it is needed."""
        from ddpjob_agent import stacks

        return stacks

    def take_stacks(self) -> Any:
        """The stacks of this pod's processes now: a list of agent_stacks.Process."""
        launch = next(read_records(self.config.run_dir, "launch"), {})
        workers = {integer(w.get("pid")) for w in objects(launch.get("workers"))} - {None}
        workers |= set(counting_pids(self.config.run_dir))
        with self.stacks_lock:  # two at once would read each other's answers
            return self.stacks.take(os.getpid(), workers, STACK_SIGNAL)

    def reap(self) -> None:
        """Collect every child that has ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                signalled = os.WIFSIGNALED(status)
                code = -os.WTERMSIG(status) if signalled else os.WEXITSTATUS(status)
                if pid == self.pid:
                    self.code = code
                else:
                    self.orphan_codes.add(code)

    def has_started(self) -> bool:
        """Whether torchrun has made its workers, or another command has a master or makes steps."""
        if self.mode == "torchrun":
            return os.path.exists(os.path.join(self.config.run_dir, "launch.json"))
        found = self.watch is None or self.watch.found.is_set()
        return found or self.progress.source != "none"

    def missing(self) -> tuple[str, float]:
        """What is waited for, and how many seconds it may take in all.

        A command of the job's own may never need the name, so it is not ended for want of it.
        """
        config, limit = self.config, self.config.rendezvous_seconds
        if self.watch is not None and not self.watch.found.is_set():
            what = f"the name of node rank 0, {self.watch.host}"
            return what, limit if self.mode == "torchrun" else math.inf
        where = f"{config.master_addr}:{config.master_port}"
        # torchrun's own time-out comes first, and knows more
        return f"the group of {config.nnodes} nodes at {where}", limit + min(30, limit)

    def judge(self) -> Verdict:
        """What happened."""
        now = time.time()
        if self.hung is not None:
            return self.hung
        if self.expired:
            return Verdict("Rendezvous", NO_RENDEZVOUS, Failure(self.expired, now))
        code = -signal.SIGKILL if self.code is None else self.code  # the grace period was too short
        launch: Any = None
        if self.mode == "torchrun":
            launch = next(read_records(self.config.run_dir, "launch"), {})
        failures: list[Failure] = []
        if code != 0:
            rank = self.config.node_rank if self.config.nproc_per_node == 1 else None
            launcher = {"pid": self.pid, "exitcode": code, "rank": rank, "local_rank": rank and 0}
            errors = list(read_records(self.config.run_dir, "error-"))
            failures = find_failures(
                self.config, launch, errors, launcher, now, self.progress.stepped()
            )
        stop = self.terminated_at
        if stop is None or any(f.time < stop for f in failures):
            if code == 0:
                return Verdict("Completed", OK, Failure("", now, exit_code=0))
            script = missing_script(self.arguments) if self.mode == "command" else None
            if script is not None and code == 2:  # Python says so itself, to nobody but the log
                failure = Failure(f"no script {os.path.abspath(script)!r}", now, exit_code=2)
                return Verdict("LaunchFailed", USER_ERROR, failure)
            if failures:
                verdict = judge_failures(failures, self.config.nnodes == 1)
                return judge_memory(verdict, oom_kills() - self.oom_kills)
            return judge_torchrun(launch.get("error"), self.config, code, now)
        saved = [f for f in failures if f.exit_code == SAVED]
        if saved or SAVED in self.orphan_codes:
            return judge_failures(saved or [Failure("", stop, exit_code=SAVED)])
        if self.is_done(launch, code, stop):
            return Verdict("Completed", OK, Failure("", now, exit_code=0))
        return judge_stop(stop)

    def is_done(self, launch: Any, code: int, stop: float) -> bool:
        """Whether the training was complete when SIGTERM came, at `stop`.

        Exit code 0 after it is no proof: many scripts leave their loop early and return.
        """
        workers = objects((launch or {}).get("workers"))
        ended = [past(w.get("ended_at"), stop) for w in workers if w.get("exitcode") == 0]
        if workers and len(ended) == len(workers) and max(ended) < stop:
            return True
        return code == 0 and self.progress.is_complete

    def kill_rest(self) -> None:
        """Nothing outlives the agent, here as in a pod, where the kernel sees to it."""
        for _ in range(100):  # the children of a killed child come to us in the next round
            rest = [*children(), *([self.pid] if self.code is None else [])]
            if not rest:
                return
            for pid in rest:
                kill(pid, signal.SIGKILL)
            time.sleep(0.02)
            self.reap()

    def finish(self, verdict: Verdict) -> int:
        """Write the last progress and the summary; the agent's exit code."""
        self.page = self.progress.page("finished")
        write_summary(self.config.termination_log, summarize(verdict, self.page))
        first = verdict.failure
        if verdict.agent_exit != OK:
            rank = "" if first.rank is None else f"rank {first.rank}: "
            gone = first.grade > OWN and verdict.agent_exit != HANG
            echo = " (another rank had gone before)" if gone else ""
            say(f"{verdict.reason}: {rank}{first.message}{echo}")
        return verdict.agent_exit


def main(argv: list[str]) -> int:
    """Entry point; the exit code."""
    try:
        if argv[:1] not in (["torchrun"], ["command"]) or argv[1:2] != ["--"] or not argv[2:]:
            raise ConfigError(f"usage: agent.pyz torchrun|command -- ARGS…, got {argv}")
        config = Config.from_env(os.environ)
    except ConfigError as problem:
        say(f"LaunchFailed: {problem}")
        verdict = Verdict("LaunchFailed", USER_ERROR, Failure(str(problem), time.time()))
        path = os.environ.get("DDPJOB_TERMINATION_LOG") or "/dev/termination-log"
        write_summary(path, summarize(verdict, {}))
        return USER_ERROR
    return Agent(config, argv[0], argv[2:]).run()
