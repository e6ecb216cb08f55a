"""What a kind of failure is, and what `status.failure` must say of it."""

import re
import textwrap
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tests.cluster.client import Client
from tests.cluster.kubelet import ScriptedKubelet
from tests.cluster.podstatus import Life, Pod

Failure = dict[str, Any]


JOB = "the job that ran it"  # a key of a `Failure`
ANY = "?"  # an exception, or none: either end of a race is told rightly


@dataclass(frozen=True)
class Cause:
    """A first cause, complete: what is not named here must be absent from `status.failure`."""

    reason: str
    rank: int | None = 1
    """None: whichever."""
    node_rank: int | None = None
    """Of the pod; as `rank` where each pod has one."""
    exit_code: int | None = None
    signal: str | None = None
    exception: str | None = None
    message: tuple[str, ...] = ()
    """Parts that must be in it."""

    def differences(self, job: str, failure: Failure) -> list[str]:
        """What is wrong with `failure`, empty if it names this cause."""
        code, signal = self.exit_code, self.signal
        if self.exception and signal is None and code == 1 and failure.get("signal") == "SIGABRT":
            # gloo's threads may abort a process that is ending with an exception: both are told
            code, signal = None, "SIGABRT"
        node_rank = self.rank if self.node_rank is None else self.node_rank
        where = {"rank": self.rank, "pod": f"{job}-0-{node_rank}"}
        wanted = {
            "reason": self.reason,
            **(where if self.rank is not None else {}),
            "exitCode": code,
            "signal": signal,
            "exception": failure.get("exception") if self.exception == ANY else self.exception,
        }
        wrong = [
            f"{name} must be {value!r}, is {failure.get(name)!r}"
            for name, value in wanted.items()
            if failure.get(name) != value
        ]
        message = failure.get("message", "")
        wrong += [f"{part!r} is not in it" for part in self.message if part not in message]
        return [*wrong, f"message: {message!r}"] if wrong else []


def exception(kind: str, *message: str, rank: int = 1, node_rank: int | None = None) -> Cause:
    """An uncaught exception, after which Python exits with 1."""
    return Cause("Exception", rank, node_rank, 1, exception=kind, message=(kind, *message))


def exit_code(code: int, *message: str, rank: int = 1, node_rank: int | None = None) -> Cause:
    """An exit code without an exception."""
    return Cause("ExitCode", rank, node_rank, code, message=message or (f"code {code}",))


def killed(signal: str, *message: str, rank: int = 1, node_rank: int | None = None) -> Cause:
    """An end by a signal."""
    return Cause("Signal", rank, node_rank, signal=signal, message=message or (signal,))


class Scene(Protocol):
    """What a kind may act on while its job runs."""

    client: Client
    namespace: str
    kubelet: ScriptedKubelet

    async def pods_run(self, job: str) -> list[Pod]:
        """The job's pods, once all run."""

    async def pod_is_bound(self, job: str) -> Pod:
        """The job's first pod, once it has a node."""


@dataclass(frozen=True)
class Kind:
    """One kind of failure, run as a job of its own."""

    name: str
    cause: Cause
    """What began it."""
    script: str = ""
    """train.py: it knows nothing of ddpjob."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Beside the script."""
    life: Callable[[Pod], Life] | None = None
    """The pods are played so, not run."""
    needs_cgroup: bool = False
    """A memory cgroup that the tests make; `{cgroup}` in the spec is its path."""
    act: Callable[[Scene, str], Awaitable[None]] | None = None
    """What is done to the job from outside."""
    says: Cause | None = None
    """What `status.failure` says instead of the cause, where it is wrong."""
    why: str = ""
    """It is wrong."""
    starts: str = "warm"
    """`cold`: its processes import torch themselves."""

    @property
    def job(self) -> str:
        """Name of its job."""
        words = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:46].rstrip("-")
        return words if self.starts == "warm" else f"{words}-{self.starts}"


def starts_warm(kind: Kind) -> bool:
    """Whether its processes may be forked from one that has torch imported."""
    return not kind.life and "command" not in kind.spec and kind.spec.get("launcher") != "none"


def cold(kind: Kind) -> Kind:
    """The same, with processes that import torch themselves."""
    spec = {**kind.spec, "warmStart": {"enabled": False}}
    return replace(kind, starts="cold", spec=spec)


def text(script: str) -> str:
    """A script without its indentation."""
    return textwrap.dedent(script).strip() + "\n"
