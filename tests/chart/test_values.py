"""Values are checked before anything is rendered, and each is explained where it is declared."""

import json
from collections.abc import Iterator

import pytest

from ddpjob.json_depth import Body
from tests.chart.rendering import CHART, Helm, documents


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("--set=watchNamespace=team-a", "watchNamespace"),
        ("--set=watchNamespaces={Team_A}", "watchNamespaces"),
        ("--set=watchNamespaces={a,a}", "watchNamespaces"),
        ("--set=replicas=3", "replicas"),
        ("--set=image.digest=latest", "digest"),
        ("--set=policy.hostnetwork=true", "hostnetwork"),
        ("--set-string=policy.hostNetwork=false", "hostNetwork"),
        ("--set=policy.volumeTypes=hostPath", "volumeTypes"),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm: Helm, argument: str, named: str) -> None:
    done = helm.refused_or_rendered(argument)
    assert done.returncode != 0
    assert "don't meet the specifications of the schema" in done.stderr
    assert named in done.stderr


def leaves(values: Body, prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value and key != "resources":
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def test_the_readme_lists_every_value() -> None:
    (values,) = documents((CHART / "values.yaml").read_text())
    readme = (CHART / "README.md").read_text()
    missing = [path for path in leaves(values) if f"| `{path}` |" not in readme]
    assert not missing


def test_the_schema_knows_every_value() -> None:
    (values,) = documents((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
    assert set(schema["properties"]["policy"]["properties"]) == set(values["policy"])
