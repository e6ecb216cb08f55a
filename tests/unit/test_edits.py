"""Edits of a spec as people say them, and a new job like another."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob import api
from ddpjob.api.job import MAX_NAME
from ddpjob.client import edits
from ddpjob.client.edits import with_settings, without_nodes
from ddpjob.errors import InvalidJob
from ddpjob.json_depth import merged
from tests.builders import job, job_object, made_pod

SPEC: dict[str, Any] = {
    "image": "torch:2.9",
    "nnodes": 2,
    "args": ["train.py"],
    "env": [{"name": "LR", "value": "0.1"}, {"name": "SEED", "value": "1"}],
    "resources": {"limits": {"nvidia.com/gpu": 8}},
    "failurePolicy": {"maxRestarts": 3},
}


def changed(*settings: str) -> dict[str, Any]:
    return with_settings(SPEC, settings)


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("nnodes=4", "nnodes", 4),
        ("spec.nnodes=4", "nnodes", 4),
        ("image=a=b", "image", "a=b"),
        ('args=["x.py","-q"]', "args", ["x.py", "-q"]),
        ("failurePolicy.maxRestarts=0", "failurePolicy", {"maxRestarts": 0}),
        (r"resources.limits.nvidia\.com/gpu=4", "resources", {"limits": {"nvidia.com/gpu": 4}}),
        ("env.LR=3", "env", [{"name": "LR", "value": "3"}, SPEC["env"][1]]),
        ("env.NEW=true", "env", [*SPEC["env"], {"name": "NEW", "value": "true"}]),
    ],
)
def test_a_setting_changes_its_field_alone(setting: str, field: str, value: Any) -> None:
    before = json.dumps(SPEC)
    assert changed(setting) == {**SPEC, field: value}
    assert json.dumps(SPEC) == before


@pytest.mark.parametrize("word", ["NaN", "1e400"])
def test_a_number_that_json_does_not_have_is_a_text(word: str) -> None:
    spec = changed(f"nnodes={word}")
    assert spec["nnodes"] == word
    (problem,) = api.validate(job_object(**spec))
    assert str(problem) == f"spec.nnodes: must be an integer, got {word!r}"


def test_null_removes_a_field() -> None:
    found = changed("failurePolicy.maxRestarts=null", "nnodes=null")
    assert found["failurePolicy"] == {} and "nnodes" not in found


@pytest.mark.parametrize("text", ["nnodes", "=4", "a..b=1", ".a=1", "a.=1", ""])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(InvalidJob, match="FIELD=VALUE"):
        changed(text)


def test_what_has_no_fields_becomes_an_object() -> None:
    assert changed("image.tag=x")["image"] == {"tag": "x"}


def off(*nodes: str) -> list[dict[str, Any]]:
    return [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]


def terms(template: Any) -> Any:
    affinity = template["spec"]["affinity"]["nodeAffinity"]
    return affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


def test_nodes_are_kept_off_once() -> None:
    found = without_nodes(without_nodes(SPEC, ["gpu-17"]), ["gpu-17", "gpu-18"])
    assert terms(found["template"]) == [{"matchFields": off("gpu-17", "gpu-18")}]
    assert api.validate(job_object(**found)) == []
    assert without_nodes(SPEC, []) == SPEC


def with_terms(*given: Any) -> dict[str, Any]:
    wish = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(given)}}
    return {"spec": {"affinity": {"nodeAffinity": wish}, "schedulerName": "s"}}


def test_every_alternative_of_the_file_keeps_them_off() -> None:
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    spec = {**SPEC, "template": with_terms(zone, {}), "master": {"template": with_terms(zone)}}
    found = without_nodes(spec, ["gpu-17"])
    expected = [{**zone, "matchFields": off("gpu-17")}, {"matchFields": off("gpu-17")}]
    assert terms(found["template"]) == expected
    assert terms(found["master"]["template"]) == expected[:1]
    assert found["template"]["spec"]["schedulerName"] == "s"
    assert "matchFields" not in spec["template"]["spec"].__repr__()


def test_rank_0_is_kept_off_too_by_the_overlay_of_all() -> None:
    found = without_nodes(
        {**SPEC, "master": {"template": {"spec": {"dnsPolicy": "Default"}}}}, ["gpu-17"]
    )
    for rank in (0, 1):
        assert terms(made_pod(job(**found), rank)) == [{"matchFields": off("gpu-17")}]


@pytest.mark.parametrize("node", ["", "A", "a/b"])
def test_what_is_no_name_of_a_node_is_refused(node: str) -> None:
    with pytest.raises(InvalidJob, match="name of a node"):
        without_nodes(SPEC, [node])


VALUES = st.recursive(
    st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES)


@given(OBJECTS, OBJECTS)
@example({"a": [1]}, {"a": [True]})
def test_a_merge_patch_makes_the_one_of_the_other(before: Any, after: Any) -> None:
    patch = edits.merge_patch(before, after)
    assert json.dumps(merged(before, patch), sort_keys=True) == json.dumps(after, sort_keys=True)
    assert bool(patch) == (json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True))


def stored(name: str, **annotations: str) -> dict[str, Any]:
    body = job_object(name, **{**SPEC, "suspend": True})
    body["metadata"] |= {
        "namespace": "team",
        "uid": "u",
        "resourceVersion": "3",
        "labels": {"a": "b"},
        "annotations": {
            "ddpjob.dev/user": "ana",
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
            "mine": "1",
            **annotations,
        },
    }
    body["status"] = {"state": "Failed"}
    return body


def test_a_rerun_is_a_new_object_with_the_same_spec() -> None:
    old = stored("digits")
    new = edits.rerun(old, old["spec"], "digits-2")
    assert new["metadata"] == {
        "name": "digits-2",
        "namespace": "team",
        "labels": {"a": "b"},
        "annotations": {"mine": "1", "ddpjob.dev/rerun-of": "digits"},
    }
    assert new["spec"]["image"] == "torch:2.9" and "suspend" not in new["spec"]
    assert "status" not in new


@pytest.mark.parametrize(
    ("spec", "args"),
    [
        ({"args": ["train.py", "--lr", "1"]}, ["train.py", "-q"]),
        ({"args": ["-m", "pkg.train", "--lr", "1"]}, ["-m", "pkg.train", "-q"]),
        ({"command": ["torchrun", "--nnodes=2"], "args": ["train.py", "x"]}, ["train.py", "-q"]),
        ({"command": ["python3", "train.py"], "args": ["--lr", "1"]}, ["-q"]),
        ({"launcher": "none", "args": ["--lr", "1"]}, ["-q"]),
    ],
    ids=str,
)
def test_other_arguments_leave_the_script(spec: dict[str, Any], args: list[str]) -> None:
    before = json.dumps(spec)
    assert edits.with_script_args(spec, ["-q"]) == {**spec, "args": args}
    assert json.dumps(spec) == before


@pytest.mark.parametrize("spec", [{"launcher": "none"}, {"command": ["./run"], "args": []}])
def test_other_arguments_need_a_script(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=r"^spec.args: is empty, so there is no script"):
        edits.with_script_args(spec, ["-q"])


@pytest.mark.parametrize(
    ("name", "annotation", "first"),
    [
        ("gpt-2", "", "gpt-2"),
        ("gpt-2-2", "gpt-2", "gpt-2"),
        ("renamed", "gpt-2", "renamed"),
        ("other-2", "gpt", "other-2"),
        ("x" * 50 + "-2", "x" * 52, "x" * 52),
    ],
)
def test_reruns_of_reruns_count_on(name: str, annotation: str, first: str) -> None:
    old = stored(name, **({"ddpjob.dev/rerun-of": annotation} if annotation else {}))
    assert edits.origin(old) == first


def test_names_of_reruns_fit() -> None:
    assert edits.MAX_NAME == MAX_NAME
    assert edits.rerun_name("digits", 2) == "digits-2"
    assert edits.rerun_name("x" * 52, 100) == "x" * 48 + "-100"
    assert edits.rerun_name("x" * 49 + "-yz", 2) == "x" * 49 + "-2"
