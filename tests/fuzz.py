"""DDPJobs out of the schema: number n is the same job every time, odd in many places at once.

Fields of the spec come from the CRD, overlays from the Pod's own schema, texts from lists of what
fits, what nearly fits and what is hostile. About one job in five has something else somewhere.
"""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import kubernetes_validate
import yaml

from ddpjob import names
from ddpjob.api import base, values
from ddpjob.json_depth import Body
from ddpjob.ranks import RANKS
from tests.cluster.tiers import ROOT

# Texts that a template, a shell, YAML or JSON would make something of.
HOSTILE = (
    *("", " ", "~", "null", "yes", "1e3", "0x1F", "-", "---", "@rank@", "$(RANK)", "$(", "${HOME}"),
    *("{{ 7*7 }}", "{% raw %}", "{# no #}", "{{ job.__class__ }}", "&a *a", "<<: *a", "!!str 1"),
    *("a: b", "a #b", "'", '"', "\\", "\\u0041", "a\nb", "a\tb", "\u0085", "\u2028", "\ufeff"),
    *("\u202e", "😀", "é", "\0", "\x1b[31m", "; rm -rf /", "`id`", "--rdzv-endpoint=evil:1"),
    *("x" * 64, "y" * 254, "z" * 5000, "$patch", "RANK", "a=b", "../..", "ddpjob-run"),
)
NAMES = ("a", "b", "data", "trainer", "cache", "x" * 63)
LABELS = ("env", "team", "example.com/part", "ports", "a.b_c-d")
# What fits each pattern of the schema; other texts are tried too.
FITTING = {
    base.DNS_LABEL: NAMES,
    base.DNS_SUBDOMAIN: (*NAMES, "a.b", "x" * 253),
    base.MOUNT_PATH: ("/data", "/x y", "/dev/shm", "/a/../b", "/checkpoints", "/" + "m" * 500),
    base.ABSOLUTE_PATH: ("/", "/exports", "/a//b/"),
    base.ENV_NAME: ("A", "TOKEN", "HOME", "a.b-c_d", "OMP_NUM_THREADS"),
    base.IMAGE: ("trainer:1", "r.example.com/a/b@sha256:" + "0" * 64, "~!{{x}}%"),
    base.CIDR: ("10.0.0.0/8", "0.0.0.0/0", "::/0", "fe80::1/64", "10.1.0.0/16", "1.2.3/999"),
    base.MODULE: ("transformers", "torch.nn", "a b", ".x"),
    base.MANAGER: ("ddpjob.dev/operator", "kueue.x-k8s.io/multikueue"),
    # Of status.
    values.NUMBER: ("nan", "inf", "-inf", "0.5", "1e+20", "1.234e-05"),
    values.STAMP: ("2026-01-31T12:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
    values.TALLY: ("2/2", "1240/2260", "7"),
    values.PLACE: ("0.0", "2.1", "999999999.9007199254740991"),
    values.DURATION: ("14s", "3m20s", "1d3h"),
    values.RATIO: ("0.500", "1.000"),
    RANKS: ("", "0", "0-1", "0-3,7", "0-9999", "3-1", "1,1,1"),
    base.QUANTITY: ("1", "500m", "1Gi", "1e3", ".5", "2.", "0", "12E", "100n", "1e-2"),
}
# Texts for fields of this name, where nearly all others would be refused.
BY_NAME = {
    "name": NAMES,
    "claimName": ("claim-a", "claim-b", "claim-c"),
    "image": ("trainer:1", "side:2"),
    "key": ("a", "example.com/key", "b"),
    "operator": ("Exists", "Equal", "In", "NotIn"),
    "effect": ("NoSchedule", "NoExecute", "PreferNoSchedule"),
    "mountPath": ("/data", "/x", "/cache", "/ddpjob/run", "/dev/shm"),
    "fieldPath": ("status.podIP", "metadata.name", "spec.nodeName", "metadata.labels['a']"),
    "resource": ("limits.cpu", "requests.memory"),
    "containerName": ("trainer",),
    "path": ("a", "a/b", "..data", "/etc"),
    "topologyKey": ("zone", "kubernetes.io/hostname"),
    "whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway"),
    "restartPolicy": ("Never", "Always"),
    "hostname": ("digits-0-0", "x"),
    "protocol": ("TCP", "UDP"),
    "type": ("RuntimeDefault", "Localhost", "Unconfined", "Directory"),
    "policy": ("ClusterFirst", "None"),
    "dnsPolicy": ("ClusterFirst", "Default"),
    "ip": ("10.0.0.1", "::1"),
    "driver": ("csi.example.com",),
    "onMessagePattern": ("CUDA", "a|b", "(?i)nccl", "[", "(?=a)", "\\d{1,3}"),
}
TIMES = (
    *("2026-01-31T12:00:00Z", "2026-13-45T00:00:00Z"),
    *("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
    *("0001-01-01T00:00:00+14:00", "2026-01-31T12:00:00+99:99", "2026-01-31t12:00:00x5z"),
    *("0-9999999", "0-4999", "3-1", "nan", "-inf", "1e999", "1e+20", "abc"),
)
KEYS = (*LABELS, "cpu", "memory", "nvidia.com/gpu", "ephemeral-storage")
_SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / "v1.34.0-local"


@cache
def schemas() -> Body:
    """The schemas of `spec` and of `status` in the CRD that is installed."""
    crd = yaml.safe_load((ROOT / "charts/ddpjob/files/crd.yaml").read_text())
    return dict(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"])


@cache
def pod_schemas() -> Body:
    """Schemas of Kubernetes' own types."""
    found: Body = json.loads((_SCHEMAS / "_definitions.json").read_text())["$defs"]
    return found


def fuzzed_job(number: int) -> Body:
    """Job `number` as JSON would give it."""
    return Fuzz(Random(number)).job(f"fuzz-{number}")


def fuzzed_status(number: int) -> Body:
    """Status `number`, as a namespace's administrator, or an older schema, may leave it."""
    return Fuzz(Random(number)).status()


class Fuzz:
    """Draws values that a schema allows, and others."""

    def __init__(self, random: Random) -> None:
        self.random = random
        # How often an optional field is there: some jobs are small, so that they are accepted.
        self.density = random.choice((0.08, 0.15, 0.3))
        self.oddity = random.choice((0.0, 0.0, 0.02, 0.1))
        self.is_open = False  # within an overlay, where anything can stand
        self.is_status = False

    def job(self, name: str) -> Body:
        spec: Body = self.value(schemas()["spec"], "spec", 0)
        if not self.chance(0.05):
            spec["args"] = ["train.py", *spec.get("args", [])]
        body: Body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name},
            "spec": spec,
        }
        if self.chance(0.2):
            self.spoil(spec)
        return body

    def status(self) -> Body:
        self.is_status, self.density = True, self.random.choice((0.3, 0.6, 0.9))
        status: Body = self.value(schemas()["status"], "status", 0)
        for _ in range(self.random.choice((0, 1, 1, 2, 5, 20))):
            self.spoil(status)
        return status

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def value(self, schema: Body, name: str, depth: int) -> Any:
        """Something that the schema allows, rules aside."""
        if "$ref" in schema:
            schema = pod_schemas()[schema["$ref"].rpartition("/")[2]]
        if self.is_open and self.chance(self.oddity / 4):
            return self.something()
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return self.overlay()
        if "anyOf" in schema or "oneOf" in schema:  # an integer or a text, such as a quantity
            fits = FITTING[base.QUANTITY] if "pattern" in schema or "oneOf" in schema else ("auto",)
            return self.random.choice((1, 2, 1, *fits))
        kinds = schema.get("type", "object")
        kind = kinds[0] if isinstance(kinds, list) else kinds
        if kind == "object":
            return self.fields(schema, depth)
        if kind == "array":
            return self.items(schema, name, depth)
        if kind == "integer":
            return self.integer(schema)
        if kind == "boolean":
            return self.chance(0.5)
        return self.text(schema, name) if kind == "string" else self.random.choice((0, 1.5))

    def fields(self, schema: Body, depth: int) -> Body:
        parts = schema.get("properties")
        if parts is None:
            part = schema.get("additionalProperties")
            part = part if isinstance(part, dict) else {"type": "string"}
            some = self.random.sample(KEYS, self.random.randrange(3))
            return {key: self.value(part, key, depth + 1) for key in some}
        wanted = set(schema.get("required", ()))
        rules = schema.get("x-kubernetes-validations", ())
        if any(rule["rule"].startswith("[has(") for rule in rules) and not self.chance(self.oddity):
            choices = [part for part in parts if part not in ("name", "prefix")]
            wanted.add(self.random.choice(choices))
        else:
            density = self.density / (1 + depth / 3)
            wanted |= {part for part in parts if self.chance(density)}
        return {part: self.value(parts[part], part, depth + 1) for part in parts if part in wanted}

    def items(self, schema: Body, name: str, depth: int) -> list[Any]:
        count = self.random.choice((1, 1, 2, 3)) if depth < 6 else 1
        least, most = schema.get("minItems", 0), schema.get("maxItems", count)
        found = [self.value(schema["items"], name, depth + 1) for _ in range(count)]
        names = schema.get("x-kubernetes-list-map-keys")
        if names and not self.is_open and not self.chance(self.oddity):
            found = list({str([item.get(key) for key in names]): item for item in found}.values())
        return found[:most] if not self.chance(self.oddity) or least else []

    def integer(self, schema: Body) -> int:
        least, most = schema.get("minimum", 0), schema.get("maximum", 70_000)
        small = min(most, max(least, self.random.choice((1, 2, 3, 10))))
        if not self.chance(0.2):
            return int(small)
        return int(self.random.choice((least, most, min(least + 1, most), max(most - 1, least))))

    def text(self, schema: Body, name: str) -> str:
        fits = FITTING.get(schema.get("pattern", "")) or BY_NAME.get(name)
        if fits and not self.chance(self.oddity):
            return self.random.choice(fits)
        pool = HOSTILE if self.chance(0.5) else NAMES
        most = schema.get("maxLength", 100_000)
        text = self.random.choice(pool)[:most]
        return text if len(text) >= schema.get("minLength", 0) else "a"

    def overlay(self) -> Body:
        """A pod overlay, of fields that pods have, in most cases."""
        found: Body = {}
        if self.chance(0.5):
            found["metadata"] = {"labels": {self.random.choice(LABELS): self.random.choice(NAMES)}}
        if self.chance(0.2):
            found.setdefault("metadata", {})["annotations"] = {"note": self.random.choice(HOSTILE)}
        if self.chance(0.9):
            spec = {**pod_schemas()["io.k8s.api.core.v1.PodSpec"], "required": []}
            # Nearly always refused, and for a known reason.
            dull = ["ephemeralContainers", "hostname", "subdomain", "nodeName", "priority"]
            dull += ["overhead"]
            spec["properties"] = {
                part: schema
                for part, schema in spec["properties"].items()
                if part not in dull or self.chance(self.oddity)
            }
            self.is_open = True
            found["spec"] = self.value(spec, "spec", 1)
            self.is_open = False
        return found

    def spoil(self, spec: Body) -> None:
        """Put something else in some place."""
        place: Any = spec
        while True:
            inner = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not inner:
                return
            where = self.random.choice(inner)
            if not isinstance(place[where], dict | list) or self.chance(0.3):
                break
            place = place[where]
        place[where] = self.something()

    def something(self) -> Any:
        """What nobody asked for."""
        text = self.random.choice(HOSTILE)
        if self.is_status and self.chance(0.3):
            return self.random.choice(TIMES)
        numbers = (True, 0, -1, 2**31, 2**53 + 1, 1.5)
        lists: tuple[Any, ...] = ([], [None], [1], [[]], [{}], [{"name": "a"}] * 2, [text])
        return self.random.choice((None, *numbers, "x", "7", *lists, {}, {"a": 1}, text))
