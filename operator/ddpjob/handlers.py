"""The operator process: `python -m ddpjob.handlers`.

It runs the controller, which makes the pods of DDPJobs. kopf starts and ends the process, logs in,
and streams the events of DDPJobs. These events are triggers and never data. kopf has no handlers
but for events, so it makes no write of its own.
"""

import argparse
import asyncio
import itertools
import logging
import random
import resource
import sys
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import aiohttp
import kopf

from ddpjob import __version__, names, text
from ddpjob.cluster.credentials import Credentials, NoCredentials
from ddpjob.cluster.kube import KubeCluster
from ddpjob.controller.controller import Controller
from ddpjob.controller.lease import Elector
from ddpjob.jsonlog import JsonLines
from ddpjob.kopf_guard import guarded_answers
from ddpjob.metrics import Metrics
from ddpjob.pods.allowlist import Policy, parse_policy
from ddpjob.server import serve
from ddpjob.settings import Settings
from ddpjob.text import printable

log = logging.getLogger("ddpjob")

MOST_DESCRIPTORS = 16384


class NoDiffs(kopf.DiffBaseStorage):
    """A storage without diffs: kopf has no handler of changes here."""

    def build(self, **_: Any) -> Any:
        """Return nothing to compare."""
        return {}

    def fetch(self, **_: Any) -> Any:
        """Nothing was stored."""
        return None

    def store(self, **_: Any) -> None:
        """Nothing to store."""


class Backoffs(Iterable[float]):
    """Pauses between tries, without end: 0.2 s, doubling, at most 3 s.

    kopf's own pauses end after a minute, and kopf ends with them.
    """

    def __iter__(self) -> Iterator[float]:
        for n in itertools.count():
            yield min(0.2 * 2 ** min(n, 10), 3.0) * random.uniform(0.7, 1.0)


def configure(settings: kopf.OperatorSettings) -> None:
    """Turn kopf into an event source and nothing else.

    The reasons are in docs/design.md, with figures.
    """
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = NoDiffs()
    settings.queueing.idle_timeout = 0.2
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.chunk_size = 500
    settings.networking.error_backoffs = Backoffs()
    settings.networking.request_timeout = 30
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)


def build(options: argparse.Namespace, policy: Policy) -> kopf.OperatorRegistry:
    """Return the handlers, bound to one controller that starts and ends with kopf."""
    registry = kopf.OperatorRegistry()
    credentials = Credentials.find()
    stack = AsyncExitStack()
    controllers: list[Controller] = []

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        metrics = Metrics()
        own = KubeCluster(credentials, told=metrics.requested)  # renewals wait behind no writes
        stack.push_async_callback(own.close)
        elector = Elector(own, *options.lease) if options.lease else None
        cluster = KubeCluster(
            credentials, fence=elector.check if elector else None, told=metrics.requested
        )
        stack.push_async_callback(cluster.close)
        controller = Controller(
            cluster,
            namespaces=options.namespace,
            settings=Settings(
                policy=policy, kueue=options.kueue, loopback_agents=options.loopback_agents
            ),
            elector=elector,
            observer=metrics,
        )
        metrics.controller = controller
        host, _, port = options.listen.rpartition(":")
        await stack.enter_async_context(serve(host or None, int(port), controller, metrics.page))
        if elector is not None:
            # After the controller has stopped, and before anything else that takes time.
            stack.push_async_callback(elector.release)
        task = asyncio.create_task(controller.run())
        task.add_done_callback(_die_with)
        stack.push_async_callback(_stop, task)
        controllers.append(controller)
        log.info("started version=%s namespaces=%s", __version__, options.namespace or "all")

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        # A fresh session with the token as it is now: the same credentials again would end the
        # process.
        await asyncio.sleep(random.uniform(0.0, 0.2))
        token = credentials.current_token()
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=credentials.ssl_context()),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            middlewares=[guarded_answers],
        )
        return kopf.AiohttpSession(server=credentials.server, aiohttp_session=session)

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def seen(namespace: str | None, name: str, meta: kopf.Meta, **_: Any) -> None:
        controllers[0].seen(namespace or "", name, meta.get("resourceVersion", ""))

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await stack.aclose()
        log.info("stopped")

    return registry


async def _stop(task: asyncio.Task[None]) -> None:
    task.remove_done_callback(_die_with)
    task.cancel()
    await asyncio.wait([task], timeout=5.0)


def _die_with(task: asyncio.Task[None]) -> None:
    """A controller that has ended by itself must not leave a living process that does nothing."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("the controller has ended", exc_info=error)
        raise SystemExit(1)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ddpjob.handlers", description="Run the ddpjob operator until SIGTERM."
    )
    parser.add_argument(
        "--namespace",
        action="append",
        help="watch the DDPJobs of this namespace (repeatable; default: all namespaces)",
    )
    parser.add_argument(
        "--listen",
        default=":8080",
        help="serve /healthz, /readyz and /metrics on [HOST]:PORT (default: :8080)",
    )
    parser.add_argument(
        "--lease",
        type=lease_name,
        metavar="NAMESPACE/NAME",
        help="elect a leader by this Lease; other replicas stand by (default: no election)",
    )
    parser.add_argument(
        "--policy", type=Path, help="read the allow-list for pods from this JSON file"
    )
    parser.add_argument(
        "--kueue", action="store_true", help="wait for Kueue to admit jobs that have a queue of it"
    )
    parser.add_argument("--loopback-agents", action="store_true", help=argparse.SUPPRESS)  # tests
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="log lines of text, or JSON objects (default: text)",
    )
    parser.add_argument("--verbose", action="store_true", help="log debug messages")
    parser.add_argument("--version", action="version", version=__version__)
    return parser.parse_args(arguments)


def lease_name(text: str) -> tuple[str, str]:
    """Return the namespace and the name of a Lease. Raises ArgumentTypeError."""
    namespace, _, name = text.partition("/")
    if not (namespace and name) or "/" in name:
        raise argparse.ArgumentTypeError(f"must be NAMESPACE/NAME, got {text!r}")
    return namespace, name


def load_policy(path: Path | None) -> Policy:
    """Return the allow-list in the file. Raises SystemExit, with the field, if it is invalid."""
    if path is None:
        return Policy()
    try:
        return parse_policy(path.read_bytes())
    except OSError as error:
        raise SystemExit(printable(f"--policy: {error}")) from None
    except ValueError as error:
        raise SystemExit(printable(f"--policy {path}: {error}")) from None


def raise_descriptors() -> None:
    """Allow this process as many open files as it may have: each running job takes a connection.

    A container runtime may start it with 1,024, of 500,000 that it may have.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def main() -> None:
    """Run the operator until SIGTERM."""
    options = parse()
    layout = text.Lines("%(asctime)s %(levelname)s %(name)s %(message)s")
    text.configure(
        logging.DEBUG if options.verbose else logging.INFO,
        JsonLines() if options.log_format == "json" else layout,
    )
    policy = load_policy(options.policy)
    raise_descriptors()
    # An API server stores 10,000 nested objects, and kopf ends if it cannot read one. Python's
    # reader takes 1.5 MB of stack for that, of 8 in this thread.
    sys.setrecursionlimit(20_000)
    try:
        registry = build(options, policy)
    except NoCredentials as error:
        raise SystemExit(printable(str(error))) from None
    kopf.run(
        registry=registry,
        standalone=True,
        # For its peering, which is off. Its own name needs the user's, and uid 10001 has none.
        identity=cast(Any, "ddpjob"),
        clusterwide=not options.namespace,
        namespaces=options.namespace or (),
    )


if __name__ == "__main__":
    main()
