"""The API server refuses the broken jobs, and reads YAML as `ddpjob validate` does."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpjob.documents import documents
from tests.bad_input import definition
from tests.bad_input.cases import Case, cases
from tests.builders import JOB_YAML
from tests.cluster.apiserver import ApiServer
from tests.cluster.client import Client


@pytest.fixture(scope="module")
def kind(api_server: ApiServer, request: pytest.FixtureRequest) -> None:
    definition.apply(api_server)
    request.getfixturevalue("crd")  # waits until kubectl finds it


@pytest.fixture(scope="module")
def shared_namespace(api_server: ApiServer) -> Iterator[str]:
    """One for all jobs: their names differ."""
    name = f"bad-input-{uuid.uuid4().hex[:8]}"
    api_server.create_namespace(name)
    yield name
    api_server.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.mark.deep(of=3)  # each takes a third of a second
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
@pytest.mark.usefixtures("kind")
def test_kubectl_apply_names_field_and_rule(
    api_server: ApiServer, shared_namespace: str, case: Case, tmp_path: Path
) -> None:
    file = str(case.file(tmp_path))
    said = api_server.kubectl("apply", "-n", shared_namespace, "-f", file, check=False)
    if case.refused_by == "validate":
        assert said.endswith(" created\n"), (
            f"validate alone should refuse this, because {case.reason}"
        )
    else:
        path, rule = case.api_words
        assert "rror" in said or "is invalid" in said, said
        assert path in said
        assert rule in said


# Separated by blanks; @ stands for one.
SCALARS = """
1 -1 +1 0 017 0777 0o17 0x1F 0b11 1_000 2.5 .5 -.5 1e-3 2.5E-3 9223372036854775807
-9223372036854775808 1:30 1:30:2 2024-01-01 2024-1-1T1:1:1Z 1.2.3 12:30pm 1e5a + . .. = ~ y Y
yes YES yEs n N no No on ON off OFF true True TRUE tRue false null Null NULL nULL '1' "true" a:b
{1:@a,true:@b} !!str@1
"""


@pytest.mark.usefixtures("kind")
async def test_a_scalar_means_offline_what_it_means_to_the_api_server(
    client: Client, namespace: str, tmp_path: Path
) -> None:
    path = f"/apis/ddpjob.dev/v1alpha1/namespaces/{namespace}/ddpjobs?dryRun=All"
    differences = []
    for scalar in SCALARS.split():
        value = scalar.replace("@", " ")
        text = f"{JOB_YAML}  template:\n    spec:\n      scalar: {value}\n"
        answer = await client.request("POST", path, text.encode(), content_type="application/yaml")
        file = tmp_path / "job.yaml"
        file.write_text(text)
        (document,) = documents(str(file))
        theirs = json.dumps(answer["spec"]["template"], sort_keys=True)
        ours = json.dumps(document["spec"]["template"], sort_keys=True)
        if ours != theirs:
            differences.append(f"{scalar}: {ours}, to the API server {theirs}")
    assert not differences
