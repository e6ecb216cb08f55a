"""Distributed PyTorch on Kubernetes.

One `DDPJob` object, a headless Service and one torchrun pod per node. The names of the Python SDK
(`from ddpjob import Client`) are imported when they are first used, because operator and CLI import
this package too.
"""

from typing import TYPE_CHECKING, Any

from ddpjob.version import __version__

# Where each public name is.
_PLACES = {
    **dict.fromkeys(("Client", "JobList"), "ddpjob.client.client"),
    "Job": "ddpjob.client.job",
    "Snapshot": "ddpjob.client.snapshot",
    **dict.fromkeys(("AsyncClient", "AsyncJob", "AsyncJobList"), "ddpjob.client.aio"),
    "launch": "ddpjob.client.launch",
    "Run": "ddpjob.client.run",
    "LogLine": "ddpjob.cluster.logs",
    "Event": "ddpjob.client.snapshot",
    "CodeArchive": "ddpjob.code.archive",
    # The models, whose import takes as long as all of the client.
    **dict.fromkeys(("DDPJob", "Spec", "Status", "Progress", "Failure", "Attempt"), "ddpjob.api"),
    **dict.fromkeys(
        (
            *("DDPJobError", "InvalidJob", "LoginFailed", "JobFailed", "JobTimeout"),
            *("JobRefused", "NoResult", "ResultTooLarge"),
            *("ClusterError", "NotFound", "NotInstalled", "Conflict", "AlreadyExists"),
            *("Expired", "Refused", "Forbidden", "Unavailable"),
        ),
        "ddpjob.errors",
    ),
}

__all__ = [*_PLACES, "__version__"]  # noqa: PLE0604

if TYPE_CHECKING:
    from ddpjob.api import Attempt as Attempt
    from ddpjob.api import DDPJob as DDPJob
    from ddpjob.api import Failure as Failure
    from ddpjob.api import Progress as Progress
    from ddpjob.api import Spec as Spec
    from ddpjob.api import Status as Status
    from ddpjob.client.aio import AsyncClient as AsyncClient
    from ddpjob.client.aio import AsyncJob as AsyncJob
    from ddpjob.client.aio import AsyncJobList as AsyncJobList
    from ddpjob.client.client import Client as Client
    from ddpjob.client.client import JobList as JobList
    from ddpjob.client.job import Job as Job
    from ddpjob.client.launch import launch as launch
    from ddpjob.client.run import Run as Run
    from ddpjob.client.snapshot import Event as Event
    from ddpjob.client.snapshot import Snapshot as Snapshot
    from ddpjob.cluster.logs import LogLine as LogLine
    from ddpjob.code.archive import CodeArchive as CodeArchive
    from ddpjob.errors import AlreadyExists as AlreadyExists
    from ddpjob.errors import ClusterError as ClusterError
    from ddpjob.errors import Conflict as Conflict
    from ddpjob.errors import DDPJobError as DDPJobError
    from ddpjob.errors import Expired as Expired
    from ddpjob.errors import Forbidden as Forbidden
    from ddpjob.errors import InvalidJob as InvalidJob
    from ddpjob.errors import JobFailed as JobFailed
    from ddpjob.errors import JobRefused as JobRefused
    from ddpjob.errors import JobTimeout as JobTimeout
    from ddpjob.errors import LoginFailed as LoginFailed
    from ddpjob.errors import NoResult as NoResult
    from ddpjob.errors import NotFound as NotFound
    from ddpjob.errors import NotInstalled as NotInstalled
    from ddpjob.errors import Refused as Refused
    from ddpjob.errors import ResultTooLarge as ResultTooLarge
    from ddpjob.errors import Unavailable as Unavailable


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)
