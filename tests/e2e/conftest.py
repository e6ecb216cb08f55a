"""The cluster of the e2e tests, and a namespace of its own for each."""

import uuid
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from tests.cluster.kind import KindCluster
from tests.cluster.tiers import skipping_where_unavailable, tier_of
from tests.e2e.install import Job, install, uninstall

OPERATOR_IMAGE = "ddpjob/operator:0.1.0"
TRAINER_IMAGE = "ddpjob/trainer:0.1.0"
TRAINER_IMAGES = (TRAINER_IMAGE, f"{TRAINER_IMAGE}-accelerate", f"{TRAINER_IMAGE}-hf")
FOREIGN_IMAGE = "ddpjob-test/foreign:0.1.0"
TIMEOUT_SECONDS = 900  # s; the longest takes 155 beside all others


@pytest.fixture(scope="session")
def kind_cluster() -> Iterator[KindCluster]:
    """A cluster with two workers."""
    with skipping_where_unavailable():
        cluster = KindCluster()
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def operator_image(kind_cluster: KindCluster) -> str:
    """The operator's image, as a pod should name it."""
    with skipping_where_unavailable():
        return kind_cluster.load_image(OPERATOR_IMAGE)


@pytest.fixture(scope="session")
def trainer_image(kind_cluster: KindCluster) -> str:
    """Our trainer's image, as a pod should name it."""
    with skipping_where_unavailable():
        return kind_cluster.load_image(TRAINER_IMAGE)


@pytest.fixture(scope="session")
def trainer_images(kind_cluster: KindCluster) -> list[str]:
    """Our trainer's image of each level; they share all but their last layers."""
    with skipping_where_unavailable():
        return [kind_cluster.load_image(image) for image in TRAINER_IMAGES]


@pytest.fixture(scope="session")
def foreign_image(kind_cluster: KindCluster) -> str:
    """An image with torch and nothing of ours, as a pod should name it."""
    with skipping_where_unavailable():
        return kind_cluster.load_image(FOREIGN_IMAGE)


@pytest.fixture(scope="module")
def installed(kind_cluster: KindCluster, operator_image: str) -> Iterator[None]:
    """The operator, from the chart, for a whole module."""
    install(kind_cluster)
    yield
    uninstall(kind_cluster)


@pytest.fixture
def namespace(kind_cluster: KindCluster) -> Iterator[str]:
    """A namespace of the test's own, deleted afterwards without waiting."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    kind_cluster.create_namespace(name)
    yield name
    kind_cluster.delete_namespace(name)


@pytest.fixture
def train(kind_cluster: KindCluster, namespace: str, foreign_image: str) -> Callable[..., Job]:
    """Creates a job that makes so many steps, in an image with nothing of ours."""

    def create(name: str, steps: int, **more: Any) -> Job:
        args = ["/train.py", "--steps", str(steps)]
        spec = {"image": foreign_image, "nnodes": 2, "args": args, **more}
        return Job.from_spec(kind_cluster, namespace, name, **spec)

    return create


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if tier_of(item.path) == "e2e" and not item.get_closest_marker("timeout"):
            # Without fixtures: the first test would have to wait for the cluster and its images.
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS, func_only=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    found = getattr(item, "funcargs", {})
    if report.when == "call" and report.failed and {"kind_cluster", "namespace"} <= found.keys():
        text = found["kind_cluster"].dump(found["namespace"])
        report.sections.append((f"namespace {found['namespace']}", text))
    return report
