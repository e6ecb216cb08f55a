"""Text of a user stands in the pods as it was written, at its place, and moves nothing else.

Every place has a word of its own in a first render. The second, of the same job with hostile texts
for the words, has to be the first with those texts for the words, and nothing besides.
"""

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ddpjob import names
from ddpjob.api import DDPJob
from ddpjob.json_depth import Body
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from tests.builders import job, made_pod, trainer

AGENT = render.Agent(b"agent")
POLICY = Policy(volume_types=["*"])
LONG = 1200  # characters of up to 6 bytes, at several places; a spec has 64 KiB

SNIPPETS = (
    *("{{ 7*7 }}", "{% raw %}", "{% if x %}", "{# x #}", "{{", "}}", "%}", "{{ job.uid }}"),
    *("{{ ''.__class__.__mro__ }}", "@rank@", "@rank@@", "@rank", "$(RANK)", "$$(RANK)", "${HOME}"),
    *('"', "'", '"}]}', "\\", '\\"', "\\u0041", "</script>", '{"a": 1}', "[1]", ",", ":", "null"),
    *("&a", "*a", "<<: *a", "!!str", "- a", "a: b", "# no", "| ", ">-", "---", "...", "~", "yes"),
    *("\0", "\x01", "\x1b[2J", "\x7f", "\t", "\n", "\r\n", "\u0085", "\u00a0", "\u2028", "\u2029"),
    *("\ufeff", "\ufffd", "\uffff", "\u202e", "e\u0301", "😀", "\U0010ffff", "`id`", "; rm -rf /"),
)
texts = st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=12), max_size=6).map("".join)
long_texts = st.builds(lambda text: (text * LONG)[:LONG], texts.filter(bool))
hostile = texts | long_texts
images = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=200)
images |= st.sampled_from(["{{7*7}}", "{%raw%}", '"}],"x":[{"', "@rank@", "\\", "'"])
SHORT = 253

Places = dict[str, Callable[[Body], Any]]


def named(items: list[Body], name: str) -> Body:
    return next(item for item in items if item["name"] == name)


def volume(pod: Body, name: str) -> Body:
    return named(pod["spec"]["volumes"], name)


# Where in the pod each text of `spec_of` belongs.
PLACES: Places = {
    "command": lambda pod: trainer(pod)["args"][0],
    "first argument": lambda pod: trainer(pod)["args"][1],
    "last argument": lambda pod: trainer(pod)["args"][2],
    "value": lambda pod: named(trainer(pod)["env"], "X")["value"],
    "field": lambda pod: named(trainer(pod)["env"], "F")["valueFrom"]["fieldRef"]["fieldPath"],
    "key": lambda pod: named(trainer(pod)["env"], "K")["valueFrom"]["secretKeyRef"]["key"],
    "prefix": lambda pod: trainer(pod)["envFrom"][0]["prefix"],
    "sub path": lambda pod: trainer(pod)["volumeMounts"][-1]["subPath"],
    "item": lambda pod: volume(pod, "c")["configMap"]["items"][0]["path"],
    "attribute": lambda pod: volume(pod, "d")["csi"]["volumeAttributes"]["a"],
    "note": lambda pod: volume(pod, "e")["ephemeral"]["volumeClaimTemplate"]["metadata"][
        "annotations"
    ]["a"],
    "host path": lambda pod: volume(pod, "h")["hostPath"]["path"],
    "label": lambda pod: pod["metadata"]["labels"]["team"],
    "annotation": lambda pod: pod["metadata"]["annotations"]["note"],
    "node": lambda pod: pod["spec"]["nodeSelector"]["disk"],
    "sidecar": lambda pod: named(pod["spec"]["containers"], "side")["command"][0],
    "unknown": lambda pod: pod["spec"]["unknown"][0]["field"],
    "image": lambda pod: trainer(pod)["image"],
}
WORDS = {place: f"word-{number}" for number, place in enumerate(PLACES)}
BOUNDS = {"field": 512, "key": SHORT, "prefix": SHORT, "sub path": 512, "item": 512}
BOUNDS |= {"host path": 512}
# Of the overlay, which has 32 KiB; a character takes up to six bytes as JSON.
BOUNDS |= dict.fromkeys(("label", "annotation", "node", "sidecar", "unknown"), 1024)
FILLED = ("field", "key", "item", "host path")  # must not be empty


def spec_of(words: dict[str, str]) -> Body:
    """A job with a text in every place that takes any."""
    claim = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {}}}}
    return {
        "image": words["image"],
        "launcher": "none",
        "command": [words["command"]],
        "args": [words["first argument"], words["last argument"]],
        "env": [
            {"name": "X", "value": words["value"]},
            {"name": "F", "valueFrom": {"fieldRef": {"fieldPath": words["field"]}}},
            {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": words["key"]}}},
        ],
        "envFrom": [{"prefix": words["prefix"], "configMapRef": {"name": "c"}}],
        "volumes": [
            {
                "name": "c",
                "configMap": {"name": "c", "items": [{"key": "k", "path": words["item"]}]},
            },
            {"name": "d", "csi": {"driver": "d", "volumeAttributes": {"a": words["attribute"]}}},
            {
                "name": "e",
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "metadata": {"annotations": {"a": words["note"]}},
                        **claim,
                    }
                },
            },
            {"name": "h", "hostPath": {"path": words["host path"]}},
        ],
        "volumeMounts": [{"name": "c", "mountPath": "/c", "subPath": words["sub path"]}],
        "template": {
            "metadata": {
                "labels": {"team": words["label"]},
                "annotations": {"note": words["annotation"]},
            },
            "spec": {
                "nodeSelector": {"disk": words["node"]},
                "containers": [{"name": "side", "image": "side", "command": [words["sidecar"]]}],
                "unknown": [{"field": words["unknown"]}],
            },
        },
        "networkPolicy": {
            "egress": [{"to": [{"podSelector": {"matchLabels": {"a": words["label"][:63]}}}]}]
        },
    }


def rendered(job: DDPJob, rank: int) -> Body:
    body = made_pod(job, rank, POLICY)
    body["metadata"]["annotations"].pop(names.SPEC_HASH_ANNOTATION)
    return body


def with_texts(value: Any, texts: dict[str, str]) -> Any:
    """`value` with a text for every word."""
    if isinstance(value, dict):
        return {key: with_texts(part, texts) for key, part in value.items()}
    if isinstance(value, list):
        return [with_texts(part, texts) for part in value]
    return texts.get(value, value) if isinstance(value, str) else value


PLAIN = {rank: rendered(job(**spec_of(WORDS)), rank) for rank in (0, 1)}


def bounded(place: str, text: str) -> str:
    text = text[: BOUNDS.get(place, LONG)]
    return text or ("x" if place in FILLED else text)


@settings(max_examples=1000)
@given(st.lists(hostile, min_size=1, max_size=5), images)
def test_any_text_at_any_place_stands_there_unchanged(found: list[str], image: str) -> None:
    # A few texts for all places: drawing one for each would take most of the time.
    turns = zip(PLACES, itertools.cycle(found), strict=False)
    texts = {place: bounded(place, text) for place, text in turns} | {"image": image}
    ours = job(**spec_of(texts))
    for rank, plain in PLAIN.items():
        pod = rendered(ours, rank)
        assert {place: look(pod) for place, look in PLACES.items()} == texts
        assert pod == with_texts(plain, {WORDS[place]: text for place, text in texts.items()})
    network = render.network_policy(ours, POLICY)
    assert network is not None
    (*_, rule) = network["spec"]["egress"]
    assert rule["to"][0]["podSelector"]["matchLabels"] == {"a": texts["label"][:63]}
