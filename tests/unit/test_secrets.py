"""What is secret in a job is in its pods and nowhere else: not in logs, Events or status.

Secret are the values of environment variables, the arguments of commands, what a volume's driver is
told, and whatever an agent answers beyond its report. Not secret are names: of variables, of
Secrets and their keys, of fields. And a script's own last words are the script's own choice: the
message of its exception stands in status and in an Event, since that is what people look for there;
its figures have the names that it gave them.
"""

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from ddpjob import names
from ddpjob.cli.validate import check
from ddpjob.cluster import DDPJOBS, EVENTS, PODS, SERVICES, Resource
from ddpjob.errors import cluster_error
from ddpjob.json_depth import Body
from tests.builders import job_object, summary
from tests.cluster.webserver import listening
from tests.fuzz import fuzzed_job
from tests.localplay import NAMESPACE, OperatorView, Script, Watched, operating, until

MARK = "hunter2"


def secrets() -> Body:
    """Fields of a spec with a secret in each."""
    names = iter(range(100))

    def secret() -> str:
        return f"{MARK}-{next(names)}"

    side = {"name": "side", "image": "side", "args": [secret()], "command": [secret()]}
    return {
        "args": ["train.py", "--token", secret(), f"--password={secret()}"],
        "env": [
            {"name": "TOKEN", "value": secret()},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "key"}}},
        ],
        "envFrom": [{"secretRef": {"name": "more"}}],
        "imagePullSecrets": [{"name": "registry"}],
        "volumes": [{"name": "v", "csi": {"driver": "d", "volumeAttributes": {"p": secret()}}}],
        "template": {
            "spec": {
                "containers": [
                    {"name": "trainer", "env": [{"name": "DB", "value": secret()}]},
                    side | {"env": [{"name": "DB", "value": secret()}]},
                ],
                "initContainers": [{**side, "name": "first"}],
            }
        },
    }


def overlay(**trainer: Any) -> Body:
    return {"template": {"spec": {"containers": [{"name": "trainer", **trainer}]}}}


@dataclass(frozen=True)
class Life:
    """What happens to a job with secrets."""

    name: str
    shows: str  # a condition's reason, once it is there the story is over
    script: Script = lambda attempt, rank: None
    spec: Body = field(default_factory=dict)
    message: str = ""  # what a failed pod leaves behind
    refusal: str = ""  # what the API server answers to pods
    taken: bool = False  # the job's Service is somebody else's


def fails(attempt: int, rank: int) -> int | None:
    return 1 if rank == 1 else None


NO_RESTART = {"failurePolicy": {"maxRestarts": 0}}
HIDDEN = {"env": {"TOKEN": f"{MARK}-env"}, "args": [f"{MARK}-args"], "x": f"{MARK}-x"}
LIVES = (
    Life("succeeds", "AllRanksSucceeded", lambda attempt, rank: 0),
    Life("fails", "MaxRestartsExceeded", fails, NO_RESTART),
    Life("fails and starts again", "AllRanksSucceeded", lambda attempt, rank: 1 - min(attempt, 1)),
    Life(
        "leaves more than a summary",
        "MaxRestartsExceeded",
        fails,
        NO_RESTART,
        message=summary(**HIDDEN, progress={"step": 1, "source": "file", **HIDDEN}),
    ),
    Life("is refused by a quota", "CreateRefused", refusal="exceeded quota: pods=1"),
    Life("finds its name taken", "NameTaken", taken=True),
    Life("is suspended", "Suspended", spec={"suspend": True}),
    Life("misses its deadline", "DeadlineExceeded", spec={"activeDeadlineSeconds": 1}),
    # Overlays that are refused, each for what holds a secret.
    *(
        Life(f"is invalid: {name}", "Invalid", spec=spec)
        for name, spec in {
            "reserved": overlay(env=[{"name": "RANK", "value": f"{MARK}-rank"}]),
            "a text for a variable": overlay(env=[f"TOKEN={MARK}"]),
            "args": overlay(args=["--token", MARK]),
            "volume": {
                "template": {
                    "spec": {"volumes": [{"name": "v", "flexVolume": {"options": {"p": MARK}}}]}
                }
            },
        }.items()
    ),
)


class Told(Watched):
    """Remembers every Event, every status, and answers pods as it is told to."""

    def __init__(self, life: Life) -> None:
        super().__init__()
        self.life = life
        self.told: list[str] = []
        self.agent_port: int | None = None

    async def update_status(self, resource: Resource, namespace: str, body: Any) -> Body:
        """A pod's gets its last words, and an address where an agent answers."""
        if resource == PODS:
            for container in body["status"].get("containerStatuses", ()):
                if ended := container["state"].get("terminated"):
                    ended["message"] = self.life.message
            if self.agent_port:
                annotations = body["metadata"]["annotations"]
                annotations[names.AGENT_PORT_ANNOTATION] = str(self.agent_port)
                body["status"]["podIP"] = "127.0.0.1"
        return await super().update_status(resource, namespace, body)

    def operator(self) -> OperatorView:
        outer = self

        class View(OperatorView):
            async def create(self, resource: Resource, namespace: str, body: Any) -> Body:
                if resource == EVENTS:
                    outer.told.append(json.dumps(body))
                if resource == PODS and outer.life.refusal:
                    raise cluster_error(403, "Forbidden", outer.life.refusal)
                return await super().create(resource, namespace, body)

            async def update_status(self, resource: Resource, namespace: str, body: Any) -> Body:
                outer.told.append(json.dumps(body["status"]))
                return await super().update_status(resource, namespace, body)

        return View(self)


REPORT = {"attempt": 0, "step": 3, "source": "file", "loss": 0.5, **HIDDEN}


class Agent:
    """Answers the operator with a report, and more than it was asked for."""

    asked = 0

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        headers = {"X-Token": MARK, "Set-Cookie": f"session={MARK}"}
        return web.json_response(REPORT, headers=headers)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """All that is logged, debug messages included."""
    with caplog.at_level(logging.DEBUG):
        yield caplog


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.name)
async def test_no_secret_leaves_the_pods(life: Life, log: pytest.LogCaptureFixture) -> None:
    cluster = Told(life)
    if life.taken:
        await cluster.create(SERVICES, NAMESPACE, {"metadata": {"name": "digits"}})

    async def over() -> bool:
        return life.shows in [c["reason"] for c in (await status(cluster)).get("conditions", ())]

    await submit(cluster, life)
    async with operating(cluster, life.script):
        await until(over)
        await asyncio.sleep(0.05)
    judge(cluster, log)


async def test_what_an_agent_answers_beside_its_report_is_not_repeated(
    log: pytest.LogCaptureFixture,
) -> None:
    # Its agent is polled for progress.
    spec = {"failurePolicy": {"restartStrategy": "Recreate"}, "nodeTimeoutSeconds": 0}
    cluster, agent = Told(Life("runs", "", spec=spec)), Agent()
    await submit(cluster, cluster.life)
    async with (
        listening(progress=agent.answer) as cluster.agent_port,
        operating(cluster, cluster.life.script),
    ):
        await until(lambda: agent.asked > 2)
    assert (await status(cluster))["progress"]["step"] == 3
    judge(cluster, log)


async def submit(cluster: Told, life: Life) -> None:
    body = job_object("digits", **{"nnodes": 2, **secrets(), **life.spec})
    await cluster.create(DDPJOBS, NAMESPACE, body)


async def status(cluster: Told) -> Body:
    """What kubectl would show."""
    return (await cluster.get(DDPJOBS, NAMESPACE, "digits")).get("status") or {}


def judge(cluster: Told, log: pytest.LogCaptureFixture) -> None:
    formatter = logging.Formatter("%(name)s %(message)s")  # exceptions included
    logged = [formatter.format(record) for record in log.records]
    assert cluster.told and logged
    for words in (*cluster.told, *logged):
        assert MARK not in words


def marked(value: Any, secret: bool = False) -> Any:
    """`value` with a secret in every text that can be one, below `env`, `args` and the like."""
    if isinstance(value, dict):
        return {
            key: part if secret and key == "name" and isinstance(part, str) else marked(part, hides)
            for key, part in value.items()
            for hides in [key in ("env", "args", "command", "volumeAttributes") or key == "value"]
        }
    if isinstance(value, list):
        return [marked(part, secret) for part in value]
    return f"{MARK} {value}" if secret and isinstance(value, str) else value


def test_no_refusal_quotes_a_secret() -> None:
    """Of 4,000 jobs, most of which are wrong somewhere, and half of those within a secret."""
    refused = hidden = 0
    for number in range(4000):
        body = marked(fuzzed_job(number))
        problems = check(body)
        refused += bool(problems)
        hidden += any(words in str(p) for p in problems for words in ("got a text", "got a list"))
        assert MARK not in " ".join(map(str, problems)), number
    assert refused > 1000 and hidden > 50, (refused, hidden)
