"""The operator's HTTP server: /healthz, /readyz and /metrics."""

import asyncio
import resource
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from ddpjob.cluster.kube import KubeCluster
from ddpjob.controller.controller import Controller

# An event loop that is later than this is stuck.
LAG_SECONDS = 5.0


class Metrics:
    """A collector that reads the controller's state at each scrape."""

    def __init__(self, controller: Controller, cluster: KubeCluster) -> None:
        self._controller, self._cluster = controller, cluster

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. prometheus_client calls this for each scrape."""
        requests = CounterMetricFamily(
            "ddpjob_api_requests",
            "Requests to the API server. Code 0 is a request without an answer.",
            labels=["verb", "resource", "code"],
        )
        for (verb, plural, code), count in sorted(self._cluster.requests.items()):
            requests.add_metric([verb, plural, str(code)], count)
        yield requests
        yield GaugeMetricFamily(
            "ddpjob_jobs", "DDPJobs in the cache.", value=len(self._controller.jobs)
        )
        yield GaugeMetricFamily(
            "ddpjob_queue_depth", "Jobs that wait for a worker.", value=len(self._controller.queue)
        )
        yield GaugeMetricFamily(
            "ddpjob_leader",
            "1 if this replica reconciles jobs, 0 if it stands by.",
            value=int(self._controller.leading),
        )
        # Peak, in bytes; Linux counts in KiB, macOS in bytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        scale = 1 if sys.platform == "darwin" else 1024
        yield GaugeMetricFamily(
            "ddpjob_memory_peak_bytes", "Largest resident set so far.", value=peak * scale
        )


@asynccontextmanager
async def serve(
    host: str | None, port: int, controller: Controller, cluster: KubeCluster
) -> AsyncIterator[None]:
    """Serve on `host` (None: all addresses) and `port` while the block runs."""
    registry = CollectorRegistry()
    registry.register(Metrics(controller, cluster))
    lag = _Lag()

    def check(holds: Callable[[], bool], what: str) -> Callable[[web.Request], object]:
        async def answer(_: web.Request) -> web.Response:
            role = "leading\n" if controller.leading else "standing by\n"
            return web.Response(text=role) if holds() else web.Response(status=503, text=what)

        return answer

    async def metrics(_: web.Request) -> web.Response:
        text = generate_latest(registry)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    # Liveness includes the watches: a process that answers but gets no events must be restarted.
    alive = check(
        lambda: lag.seconds < LAG_SECONDS and controller.fresh, "the watches are silent\n"
    )
    app.router.add_get("/healthz", alive)  # type: ignore[arg-type]
    ready = check(lambda: controller.ready, "the caches are being filled\n")
    app.router.add_get("/readyz", ready)  # type: ignore[arg-type]
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    watching = asyncio.create_task(lag.run())
    try:
        yield
    finally:
        watching.cancel()
        await runner.cleanup()


class _Lag:
    """Measures how late the event loop is."""

    seconds = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(1.0)
            self.seconds = loop.time() - before - 1.0
