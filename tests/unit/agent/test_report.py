"""What transformers' callback reports: read with care, and put behind the script's own file."""

import http.client
import json
import stat
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddpjob_agent.config import Config
from ddpjob_agent.environment import CALLBACK_PATH, CALLBACK_TOKEN, CALLBACK_URL, offer_callback
from ddpjob_agent.progress import STEPS, Progress, Reports, parse_status
from ddpjob_agent.server import Pages, serve
from tests.agentpod import Pods
from tests.cluster.processes import free_ports
from tests.unit.agent.samples import ask, config
from tests.unit.agent.scripts import start


def status(percent: int = 40, **metrics: Any) -> dict[str, Any]:
    """As transformers 5.23 posts it: every value is text."""
    listed = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    told = {"lastUpdatedTime": "2026-11-24T20:15:00+00:00", "metrics": listed}
    return {"trainerStatus": {**told, "progressPercentage": percent}}


# ---- What is read


def test_a_report_is_read_as_a_progress_file_would_be() -> None:
    posted = status(current_step=12, total_steps=30, current_epoch=0.4, loss=2.5, grad_norm="nan")
    posted["trainerStatus"]["metrics"].append({"name": "learning_rate", "value": "1e-05"})
    report, step, is_last = parse_status(posted)
    assert (step, is_last) == (12, False)
    assert report.pop("metrics") == {"grad_norm": pytest.approx(float("nan"), nan_ok=True)} | {
        "learning_rate": 1e-05
    }
    assert report == {"total_steps": 30, "epoch": 0.4, "loss": 2.5}


def test_the_last_report_has_the_rate_and_a_loss_though_none_was_logged() -> None:
    last = status(100, train_runtime=4.2, train_samples_per_second=9.5, train_loss=0.5, epoch=2.0)
    report, step, is_last = parse_status(last)
    assert (step, is_last) == (None, True)
    assert (report["samples_per_second"], report["loss"], report["epoch"]) == (9.5, 0.5, 2.0)
    assert report["metrics"] == {"train_runtime": 4.2, "train_loss": 0.5}


@pytest.mark.parametrize(
    "content",
    [None, 7, [], {}, {"trainerStatus": None}, {"trainerStatus": []}, status(current_step="nan")]
    + [status(current_step=step) for step in ("-1", "1.5", STEPS + 1, "9" * 39, "1e3")],
)
def test_what_is_no_report_is_refused(content: Any) -> None:
    with pytest.raises(ValueError):
        parse_status(content)


NO_NAMES: list[Any] = [None, 7, [], "", "x" * 64]
NO_VALUES: list[Any] = ["", "x", "9" * 41, [], {}, True, 10**400]


@pytest.mark.parametrize(
    "metrics",
    [
        *(None, 7, "x", {}, [None, 7, [], {}], [{"name": "loss"}], [{"value": "1"}]),
        [{"name": name, "value": "1"} for name in NO_NAMES],
        [{"name": "loss", "value": value} for value in NO_VALUES],
    ],
)
def test_what_is_no_figure_is_left_out(metrics: Any) -> None:
    found = parse_status({"trainerStatus": {"metrics": metrics}})
    assert found == ({"metrics": {}}, None, False)


# ---- What becomes of it


def test_steps_go_on_from_the_report_as_they_are_counted() -> None:
    reports = Reports()
    assert reports.newest(3) == {}
    reports.take(status(0, total_steps=1000), 0)
    assert reports.newest(3) == {}, "it may go on from a checkpoint"
    reports.take(status(50, current_step=505, total_steps=1000, loss=2.0), 5)
    assert reports.newest(5)["step"] == 505
    assert reports.newest(8)["step"] == 508
    assert reports.newest(600)["step"] == 1000
    reports.take(status(100, loss=1.5), 495)
    assert reports.newest(495) == {"total_steps": 1000, "loss": 1.5, "metrics": {}, "step": 995}
    silent = Reports()
    silent.take(status(0, total_steps=12), 0)
    silent.take(status(100, train_loss=0.5), 12)
    assert silent.newest(12)["step"] == 12, "it ended before it told a step"


def progress_of(folder: Path, **changes: str) -> Progress:
    (folder / "run").mkdir()
    return Progress(config(folder, **changes))


def test_the_scripts_own_file_comes_first_whatever_is_reported(tmp_path: Path) -> None:
    progress = progress_of(tmp_path)
    progress.hear(status(current_step=5, total_steps=9))
    progress.poll(0.0)
    assert (progress.page("running")["source"], progress.page("running")["step"]) == ("callback", 5)
    Path(progress.config.progress_file).write_text('{"step": 1}')
    progress.poll(1.0)
    progress.hear(status(current_step=7, total_steps=9))
    progress.poll(2.0)
    page = progress.page("running")
    assert (page["source"], page["step"], "total_steps" in page) == ("file", 1, False)


def test_the_rest_takes_as_long_as_the_steps_since_the_first_report(tmp_path: Path) -> None:
    progress = progress_of(tmp_path)
    progress.hear(status(current_step=500, total_steps=1000))
    progress.poll(100.0)
    assert "eta_seconds" not in progress.page("running")
    progress.hear(status(current_step=510, total_steps=1000))
    progress.poll(105.0)
    assert progress.page("running")["eta_seconds"] == 245.0
    assert progress.still_seconds(106.0) == 1.0, "a report is a sign of life"
    progress.hear(status(current_step=510, total_steps=1000))
    progress.poll(107.0)
    assert progress.still_seconds(108.0) == 3.0, "but not of a new step"


# ---- To whom it is offered


def offered(folder: Path, env: dict[str, str], **changes: str) -> str:
    (folder / "run").mkdir(exist_ok=True)
    return offer_callback(config(folder, **changes), env)


def test_the_callback_finds_its_address_and_a_token_that_others_cannot_read(tmp_path: Path) -> None:
    env: dict[str, str] = {}
    token = offered(tmp_path, env)
    assert env.keys() == {CALLBACK_URL, CALLBACK_TOKEN}
    assert env[CALLBACK_URL] == "http://127.0.0.1:29499/trainer-status"
    path = Path(env[CALLBACK_TOKEN])
    assert path.read_text() == token and len(token) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert offered(tmp_path, {}) != token


@pytest.mark.parametrize(
    ("pod", "host", "address"),
    [
        ("10.1.2.3", "10.9.9.9", "127.0.0.1"),
        ("10.9.9.9", "10.9.9.9", "10.9.9.9"),  # the node's network
        ("fd00::9", "fd00::9", "[fd00::9]"),
        ("", "", "127.0.0.1"),
    ],
)
def test_it_reports_where_the_agent_listens_for_this_pod_alone(
    tmp_path: Path, pod: str, host: str, address: str
) -> None:
    env: dict[str, str] = {}
    offered(tmp_path, env, DDPJOB_POD_IP=pod, DDPJOB_HOST_IP=host)
    assert env[CALLBACK_URL] == f"http://{address}:29499/trainer-status"


@pytest.mark.parametrize(
    ("env", "changes"),
    [
        ({CALLBACK_URL: "https://elsewhere"}, {}),
        ({}, {"DDPJOB_PROGRESS": "file"}),
        ({}, {"DDPJOB_RUN_DIR": "/proc/nowhere"}),
    ],
)
def test_elsewhere_nothing_is_offered(
    tmp_path: Path, env: dict[str, str], changes: dict[str, str]
) -> None:
    before = dict(env)
    assert offered(tmp_path, env, **changes) == "" and env == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({"http_proxy": "p"}, {"no_proxy": "127.0.0.1"}),
        (
            {"HTTP_PROXY": "p", "no_proxy": "", "NO_PROXY": "*"},
            {"no_proxy": "127.0.0.1", "NO_PROXY": "*,127.0.0.1"},
        ),
    ],
)
def test_no_proxy_stands_between(
    tmp_path: Path, before: dict[str, str], after: dict[str, str]
) -> None:
    env = dict(before)
    offered(tmp_path, env)
    assert {**before, **after} == {name: env[name] for name in env if "KUBEFLOW" not in name}


# ---- Over HTTP


class Agent:
    """An agent that takes reports."""

    def __init__(self, folder: Path, **changes: str) -> None:
        (port,) = free_ports(1)
        self.config: Config = config(folder, DDPJOB_AGENT_PORT=str(port), **changes)
        (folder / "run").mkdir(exist_ok=True)
        self.progress = Progress(self.config)
        page = {"step": 3}
        serve(
            self.config,
            Pages(lambda: page, lambda: "", hear=self.progress.hear, hear_token="its own"),
        )

    def post(self, body: bytes, token: str = "its own", host: str = "127.0.0.1") -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return ask(self.config, "POST", CALLBACK_PATH, body, headers, host=host)[0]


GOOD = json.dumps(status(current_step=7)).encode()


@pytest.mark.parametrize(
    ("body", "token", "answer"),
    [
        (GOOD, "its owm", 401),
        (b"x" * 10**6, "wrong", 401),
        (json.dumps(status(current_step=-1)).encode(), "its own", 400),
    ],
)
def test_no_other_report_is_taken(tmp_path: Path, body: bytes, token: str, answer: int) -> None:
    agent = Agent(tmp_path)
    try:
        assert agent.post(body, token) == answer
    except (ConnectionError, http.client.HTTPException):
        assert len(body) > 10**5, "it did not wait for the rest"
    assert agent.progress.reports.newest(9) == {}


# ---- The loopback address


def outer_address() -> str:
    """An address of this machine that is no loopback one."""
    for cards in psutil.net_if_addrs().values():
        for card in cards:
            if card.family.name == "AF_INET" and not card.address.startswith("127."):
                return card.address
    pytest.skip("this machine has the loopback network alone")


def test_the_agent_is_on_the_loopback_address_too_but_not_on_the_nodes(tmp_path: Path) -> None:
    address = outer_address()
    agent = Agent(tmp_path, DDPJOB_POD_IP=address, DDPJOB_HOST_IP="192.0.2.1")
    assert [agent.post(GOOD, host=host) for host in (address, "127.0.0.1")] == [200, 200]
    agent = Agent(tmp_path, DDPJOB_POD_IP=address, DDPJOB_HOST_IP=address)
    assert agent.post(GOOD, host=address) == 200
    with pytest.raises(ConnectionRefusedError):
        agent.post(GOOD, host="127.0.0.1")


# ---- In a pod

POST = """
    import urllib.request
    def post(step, percent):
        metrics = [{"name": "current_step", "value": str(step)}]
        content = {"trainerStatus": {"progressPercentage": percent, "metrics": metrics}}
        token = open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read().strip()
        request = urllib.request.Request(
            os.environ["KUBEFLOW_TRAINER_SERVER_URL"],
            data=json.dumps(content).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            method="POST",
        )
        for _ in range(600):
            try:
                return urllib.request.urlopen(request, timeout=5).status
            except OSError:
                time.sleep(0.1)
    assert post(7, 70) == 200
    time.sleep(1000)
"""


def test_a_script_reports_as_transformers_would(pods: Pods) -> None:
    """A proxy for other addresses, which answers nobody, is not asked."""
    pod = start(pods, POST, http_proxy="http://192.0.2.1:3128", NO_PROXY="example.com")
    pod.until(lambda: pod.progress().get("step"))
    assert (pod.progress()["source"], pod.progress()["step"]) == ("callback", 7)
    token = (pod.folder / "run/callback-token").read_text()
    with pytest.raises(OSError, match="404"):
        pod.get("/group", token)
