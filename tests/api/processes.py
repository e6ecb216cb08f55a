"""Pods as processes, on a node of a real API server."""

import asyncio
import contextlib
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ddpjob.local.kubelet import Runner
from tests.api.jobs import Jobs
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client, connected
from tests.cluster.nodes import fake_nodes
from tests.cluster.operator import OperatorProcess
from tests.cluster.tiers import ROOT


@pytest.fixture
async def jobs(
    api_server: ApiServer, operator: OperatorProcess, client: Client, namespace: str, tmp_path: Path
) -> AsyncIterator[Jobs]:
    """Jobs whose pods run as processes, on a node called `local`."""
    async with connected(api_server) as cluster, fake_nodes(client, "local"):
        runner = Runner(
            cluster=cluster,
            directory=tmp_path,
            namespace=namespace,
            cwd=tmp_path,
            environment=dict(PATH="/usr/bin:/bin", PYTHONPATH=str(ROOT / "images" / "trainer")),
        )
        task = asyncio.create_task(runner.run())
        try:
            yield Jobs(client, namespace)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def script(folder: Path, text: str) -> str:
    """The path of a script."""
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return str(path)
