"""Tiers: markers by folder, skips that count as failures where required, and a closing table."""

import signal
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import hypothesis
import pytest

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

# What a shell starts in the background ignores Ctrl-C, and hands that on to all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# No test is judged by how fast a machine is. In CI hypothesis has this by itself.
hypothesis.settings.register_profile("patient", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("patient")

# Which programs are built ahead, so that the time it takes is seen and counts against no test.
PROGRAMS = {
    "chart": (binaries.helm,),
    "api": (binaries.control_plane,),
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
    text = "keep the kind cluster of the e2e tests, and use it again"
    parser.addoption("--keep-cluster", action="store_true", help=text)
    text = "write docs/failures.md from what the catalogue of failures saw"
    parser.addoption("--write-failures", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    for tier in TIERS:
        config.addinivalue_line("markers", f"{tier}: tests under tests/{tier}, marked by folder")
    required_tiers()  # a wrong name there is said before anything runs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if tier := tier_of(item.path):
            item.add_marker(tier)
    # The quick ones first; and no cluster is up yet while tests count this process's children.
    order = {tier: place for place, tier in enumerate((None, *TIERS))}
    items.sort(key=lambda item: order[tier_of(item.path)])


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    tiers = {tier_of(item.path) for item in session.items}
    capture = session.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        for provide in dict.fromkeys(p for t in TIERS if t in tiers for p in PROGRAMS.get(t, ())):
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each tier: how many ran, what was skipped and why, how long it took."""
    terminalreporter.section("tiers")
    stats = terminalreporter.stats
    for tier in TIERS:
        reports = {
            kind: [
                report
                for report in stats.get(kind, [])
                if isinstance(report, pytest.TestReport | pytest.CollectReport)
                and tier_of(ROOT / report.nodeid.split("::")[0]) == tier
            ]
            for kind in ("passed", "failed", "error", "skipped", "xfailed", "")
        }
        if not any(reports.values()):
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
