"""The notebook in examples/ trains in a cluster."""

from pathlib import Path

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("matplotlib")

import nbformat

from benchmarks import notebook as recorder
from tests.cluster.kind import KindCluster
from tests.e2e.hands import Hands
from tests.notebooks import assert_trained, outputs

pytestmark = pytest.mark.usefixtures("installed")


def test_the_notebook_trains_in_a_cluster_fails_and_goes_on(
    kind_cluster: KindCluster,
    namespace: str,
    trainer_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "notebook"
    folder.mkdir()
    hands = Hands(folder, kind_cluster, namespace)
    for name, value in {**hands.env, "IPYTHONDIR": str(tmp_path / "ipython")}.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(recorder.NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    chosen = notebook.cells[1]
    for old, new in (('ON = "local"', 'ON = "cluster"'), ("ddpjob/trainer:0.1.0", trainer_image)):
        assert old in chosen.source
        chosen.source = chosen.source.replace(old, new)
    client = recorder.Recorder(notebook, str(folder))
    client.execute()
    *displays, table = outputs(notebook, "text/html")
    assert len(displays) == 2 and "Succeeded" in table and "Failed" in table
    notebook.cells.pop()
    assert_trained(notebook)
    assert len(client.shown) > 3, "the display has changed while the job ran"
    left = kind_cluster.get("ddpjobs", "-n", namespace)["items"]
    assert sorted(job["status"]["state"] for job in left) == ["Failed", "Succeeded"]
