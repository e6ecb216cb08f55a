"""What `ddpjob convert` makes of jobs of other operators, sent to a real API server."""

import re
from collections.abc import Iterator
from pathlib import Path

from ddpjob.client.documents import documents
from ddpjob.convert.objects import convert
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import Body
from tests.api.reading import Cluster
from tests.cluster.apiserver import ApiError
from tests.cluster.tiers import ROOT
from tests.foreign import fuzzed_pytorch_job, fuzzed_train_job, pytorch_job, runtime, train_job

ODD = range(300)
# Nothing is stored, and a field that the schema would drop is refused.
STRICT = "dryRun=All&fieldValidation=Strict"


def foreign(folder: Path) -> Iterator[tuple[str, Body, tuple[Body, ...]]]:
    """Jobs of both operators, each with the runtimes that it may name."""
    page = (ROOT / "docs" / "convert.md").read_text()
    example = re.search(r"```yaml\n(apiVersion: kubeflow.*?)```", page, re.DOTALL)
    assert example
    (folder / "bert.yaml").write_text(example[1])
    (bert,) = documents(str(folder / "bert.yaml"))
    yield "docs/convert.md", bert, ()
    yield "a PyTorchJob", pytorch_job(), ()
    yield "a TrainJob", train_job("own"), (runtime(),)
    for number in ODD:
        yield f"PyTorchJob {number}", fuzzed_pytorch_job(number), ()
        job, known = fuzzed_train_job(number)
        yield f"TrainJob {number}", job, (known,)


def test_what_is_converted_breaks_no_rule_of_the_api_server(
    cluster: Cluster, tmp_path: Path
) -> None:
    refused, taken = list[str](), 0
    for title, body, runtimes in foreign(tmp_path):
        try:
            job = convert(body, runtimes).job
        except InvalidJob:
            continue
        job = {**job, "metadata": {**job["metadata"], "namespace": cluster.namespace}}
        try:
            cluster.server.request("POST", f"{cluster.jobs}?{STRICT}", job)
        except ApiError as error:
            refused.append(f"{title}: {error}")
            continue
        taken += 1
    assert not refused, "\n".join(refused)
    assert taken > len(ODD) / 4
