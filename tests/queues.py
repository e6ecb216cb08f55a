"""`python -m tests.queues`: the tests of gangs and queues, and their table in docs/queues.md.

It is `make queues`. Nothing is written unless all have passed.
"""

import sys
from datetime import UTC, datetime

import pytest

from tests.cluster.binaries import QUEUES
from tests.cluster.tiers import ROOT
from tests.parts import with_part

PAGE = ROOT / "docs" / "queues.md"
# What go.mod calls them, and what they are called here.
REQUIRED = {
    "k8s.io/kubernetes": "Kubernetes",
    "volcano.sh/volcano": "Volcano",
    "sigs.k8s.io/scheduler-plugins": "scheduler-plugins",
    "sigs.k8s.io/kueue": "Kueue",
}


class Seen:
    """A plugin of pytest: what each test has seen, and its seconds."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.waits = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that has passed."""
        if report.when != "call" or not report.passed:
            return
        name, _, kind = report.location[2].removeprefix("test_").partition("[")
        who = kind.rstrip("]") or ("kueue" if "kueue" in report.location[0] else "kubernetes")
        self.waits = next((str(t) for k, t in report.user_properties if k == "waits"), self.waits)
        seen = "; ".join(str(text) for key, text in report.user_properties if key == "seen")
        words = name.replace("_", " ").replace("|", "\\|")
        self.rows.append(
            f"| {who} | {words} | {seen.replace('|', '&#124;')} | {report.duration:.0f} |"
        )


def versions() -> str:
    """The programs, with the versions in their go.mod."""
    found: dict[str, str] = {}
    for module in QUEUES.values():
        for line in (module.source() / "go.mod").read_text().splitlines():
            words = line.removeprefix("require ").split()
            if len(words) >= 2 and words[0] in REQUIRED and words[1].startswith("v"):
                found.setdefault(words[0], words[1])
    return ", ".join(f"{name} {found[path]}" for path, name in REQUIRED.items())


def main() -> int:
    """Run the tests; returns pytest's exit code."""
    seen = Seen()
    files = ["tests/api/test_gangs.py", "tests/api/test_kueue.py"]
    code = pytest.main(["-m", "builds", "--depth", "full", *files, *sys.argv[1:]], [seen])
    if code == 0 and not sys.argv[1:]:
        head = f"{versions()}; {datetime.now(UTC):%Y-%m-%d}."
        table = ["| with | what | seen | seconds |", "|---|---|---|--:|", *sorted(seen.rows)]
        text = "\n\n".join([head, "\n".join(table)])
        lines = (line.rstrip() for line in seen.waits.splitlines())
        waits = "\n".join(["```", "$ kubectl get ddpjob", *lines, "```"])
        why = "<!-- no session: tests/api/test_kueue.py has run it -->\n"
        page = with_part(PAGE.read_text(), "seen", text)
        PAGE.write_text(with_part(page, "waits", why + waits))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
