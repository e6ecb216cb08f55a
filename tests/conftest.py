"""Tiers: markers by folder, skips that count as failures where required, and a closing table."""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.cluster import binaries
from tests.cluster.apiserver import ApiServer
from tests.cluster.tiers import (
    ROOT,
    TIERS,
    Unavailable,
    required_tiers,
    skipping_where_unavailable,
    tier_of,
)
from tests.depths import DEPTHS, MARKERS, left_out

# What a shell starts in the background ignores Ctrl-C, and hands that on to all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# How many tests of each tier this run leaves out, by its depth or by -k and the like.
LEFT = pytest.StashKey[Counter[str]]()
STARTED = time.monotonic()
COMMIT = pytest.StashKey[str]()  # with which the run began

# What shares something dear to start runs in one process, beside other files.
LANE = "tests/e2e/"

# Who waits long, and had better do it while others have work.
WAITING = ("tests/unit/agent/test_silent.py", "tests/chaos/test_plans.py")

# Which programs are built ahead, so that the time it takes is seen and counts against no test.
PROGRAMS = {
    "chart": (binaries.helm,),
    "chaos": (binaries.control_plane,),
    "api": (binaries.control_plane, binaries.helm),
    "e2e": (binaries.kubectl, binaries.helm),
}


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """A control plane with no nodes, shared by all tests: use a namespace of your own."""
    with skipping_where_unavailable():
        server = ApiServer()
    with server:
        yield server


@pytest.fixture(scope="session")
def crd(api_server: ApiServer) -> None:
    """The DDPJob kind, installed in `api_server`."""
    api_server.install_crd(ROOT / "charts" / "ddpjob" / "files" / "crd.yaml")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "write docs/failures.md from what the catalogue of failures saw"
    parser.addoption("--write-failures", action="store_true", help=text)
    text = "draw docs/pictures of the chart's dashboards, from what a Prometheus has for them"
    parser.addoption("--write-dashboards", action="store_true", help=text)
    text = "how deep to test: quick is `make test`, full is `make test-all` (tests/depths.py)"
    parser.addoption("--depth", choices=DEPTHS, default="full", help=text)
    text = "write the closing table into this JSON file, beside what it has of other tiers"
    parser.addoption("--record", type=Path, help=text)


def pytest_configure(config: pytest.Config) -> None:
    for tier in TIERS:
        config.addinivalue_line("markers", f"{tier}: tests under tests/{tier}, marked by folder")
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    # No test is judged by how fast a machine is, and no change by what chance finds beside it.
    same = config.option.depth != "full"
    hypothesis.settings.register_profile("ours", deadline=None, derandomize=same)
    hypothesis.settings.load_profile("ours")
    required_tiers()  # a wrong name there is said before anything runs
    binaries.may_build = config.option.depth != "quick"
    if config.option.record and not hasattr(config, "workerinput"):
        git = ["git", "describe", "--always", "--dirty"]
        described = subprocess.run(git, cwd=ROOT, capture_output=True, text=True)
        config.stash[COMMIT] = described.stdout.strip()


@pytest.hookimpl(tryfirst=True)  # the deep ones in turn, whatever -k and -m leave of them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if tier := tier_of(item.path):
            item.add_marker(tier)
        if tier == "e2e":
            item.add_marker(pytest.mark.deep)
    # The quick ones first; side by side the other way round, lest slow ones are left at the end.
    order = {tier: place for place, tier in enumerate((None, *TIERS))}
    side_by_side = hasattr(config, "workerinput")
    items.sort(
        key=lambda item: (
            side_by_side and item.nodeid.startswith(WAITING),
            order[tier_of(item.path)],
        ),
        reverse=side_by_side,
    )
    # Those that failed are run again whatever was drawn: without the others, another draw is made.
    left = [] if config.getoption("lf", False) else left_out(items, config.option.depth)
    config.hook.pytest_deselected(items=left)
    gone = set(left)
    items[:] = [item for item in items if item not in gone]


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        item.config.stash.setdefault(LEFT, Counter())[tier_of(item.path) or ""] += 1


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = lane
    return scheduler


def lane(nodeid: str) -> str:
    """What runs in one process: a file, or a folder."""
    return LANE if nodeid.startswith(LANE) else nodeid.partition("::")[0]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    cache = getattr(session.config, "cache", None)
    if cache and not hasattr(session.config, "workeroutput"):  # for .ci/run
        is_cut = session.shouldfail or session.shouldstop
        cache.set("ddpjob/exitstatus", 2 if is_cut else int(exitstatus))
    left = session.config.stash.get(LEFT, None)
    if left and hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = dict(left)


def pytest_testnodedown(node: WorkerController) -> None:
    left = Counter[str](getattr(node, "workeroutput", {}).get("left", {}))
    if left:
        node.config.stash[LEFT] = left


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    tiers = {tier_of(item.path) for item in session.items}
    capture = session.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        wanted = [p for t in TIERS if t in tiers for p in PROGRAMS.get(t, ())]
        needed = (item.get_closest_marker("builds") for item in session.items)
        names = dict.fromkeys(name for marker in needed if marker for name in marker.args)
        wanted += [partial(binaries.build, binaries.SELDOM[name]) for name in names]
        for provide in dict.fromkeys(wanted):
            with suppress(Unavailable):  # the fixture that needs it will say so
                provide()


def _require(report: pytest.TestReport | pytest.CollectReport, path: Path) -> None:
    """Fail the report if it is a skip in a tier that DDPJOB_REQUIRE names."""
    tier = tier_of(path)
    if report.skipped and not hasattr(report, "wasxfail") and tier in required_tiers():
        report.outcome = "failed"
        report.longrepr = f"DDPJOB_REQUIRE asks for {tier}, but: {_reason(report)}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _require(report, item.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _require(report, collector.path)
    return report


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    where = report.longrepr
    return str(where[2] if isinstance(where, tuple) else where).removeprefix("Skipped: ")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """One line for each tier: how many ran, how long it took, and what did not run and why."""
    terminalreporter.section("tiers")
    left, tiers = config.stash.get(LEFT, Counter[str]()), {}
    for tier in TIERS:
        reports = {
            kind: [
                report
                for report in terminalreporter.stats.get(kind, [])
                if isinstance(report, pytest.TestReport | pytest.CollectReport)
                and tier_of(ROOT / report.nodeid.split("::")[0]) == tier
            ]
            for kind in ("passed", "failed", "error", "skipped", "xfailed", "")
        }
        if not any(reports.values()) and tier not in left:
            continue
        ran = {kind: len(reports[kind]) for kind in ("passed", "failed", "error", "xfailed")}
        seconds = sum(
            report.duration
            for found in reports.values()
            for report in found
            if isinstance(report, pytest.TestReport)
        )
        outcomes = ", ".join(f"{count} {kind}" for kind, count in ran.items() if count)
        line = f"ran {sum(ran.values())} ({outcomes or 'nothing'}) in {seconds:.1f} s"
        terminalreporter.write_line(f"{tier:<8} {line}")
        for reason, count in Counter(map(_reason, reports["skipped"])).items():
            terminalreporter.write_line(f"{tier:<8} SKIPPED {count}: {reason}", yellow=True)
        if tier in left:
            line = f"{tier:<8} NOT RUN {left[tier]}: `make test-all` has them"
            terminalreporter.write_line(line, yellow=True)
        skipped = len(reports["skipped"])
        tiers[tier] = {
            **ran,
            "skipped": skipped,
            "left": left[tier],
            "seconds": round(seconds),
        }
    if (path := config.option.record) and exitstatus == pytest.ExitCode.OK:
        minutes = round((time.monotonic() - STARTED) / 60, 1)
        run = {"commit": config.stash[COMMIT], "minutes": minutes, "run": os.getpid()}
        before = json.loads(path.read_text()) if path.exists() else {}
        path.parent.mkdir(parents=True, exist_ok=True)
        record = before | {tier: ran | run for tier, ran in tiers.items()}
        path.write_text(json.dumps(record, indent=1) + "\n")
