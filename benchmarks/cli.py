"""The CPU time that the command line takes to start: `python -m benchmarks.cli`.

Each command runs several times; the least is printed, user and system time together. The first
request goes to a server on this machine that answers with an empty list. `--write` puts the table
into docs/cli.md. Exit codes: 0 all are within their budgets, 1 one is not or an error.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster.tiers import ROOT
from tests.parts import with_part
from tests.terminal import COMMAND, environment

RUNS = 7
# Seconds of CPU, on the machine on which `ddpjob --version` took 1.0 before.
BUDGETS = {"local": 0.25, "request": 0.7}
TAB = {"_DDPJOB_COMPLETE": "complete_bash", "COMP_WORDS": "ddpjob lo", "COMP_CWORD": "1"}


class Server(BaseHTTPRequestHandler):
    """Answers every request with an empty list."""

    def do_GET(self) -> None:
        """Answer."""
        body = json.dumps({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []})
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def kubeconfig(folder: Path, port: int) -> Path:
    """Write a kubeconfig for the server, and return its path."""
    context = {"cluster": "c", "user": "u", "namespace": "n"}
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{"name": "c", "context": context}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "current-context": "c",
    }
    path = folder / "config"
    path.write_text(json.dumps(config))
    return path


def cpu_seconds(command: tuple[str, ...], env: Mapping[str, str]) -> float:
    """Return the least CPU time of several runs of a command."""
    least = float("inf")
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env=dict(env), capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        least = min(least, spent)
    return least


def measure() -> Iterator[tuple[str, float, float | None]]:
    """Yield each command, its CPU time and its budget, in seconds."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with TemporaryDirectory() as folder:
        env = environment(kubeconfig(Path(folder), server.server_port))
        cases = [
            ("Python alone: `python -c ''`", (sys.executable, "-c", ""), env, None),
            ("`ddpjob --version`", (*COMMAND, "--version"), env, "local"),
            ("`ddpjob --help`", (*COMMAND, "--help"), env, "local"),
            ("`ddpjob logs --help`", (*COMMAND, "logs", "--help"), env, "local"),
            ("completion, at each TAB", COMMAND, {**env, **TAB}, "local"),
            ("`ddpjob get`, with its request", (*COMMAND, "get"), env, "request"),
        ]
        for name, command, environ, budget in cases:
            yield name, cpu_seconds(command, environ), BUDGETS[budget] if budget else None
    server.shutdown()


def main() -> int:
    """Measure, and print a row for each command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cli", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table of docs/cli.md")
    write, within = parser.parse_args().write, True
    lines = ["| command | CPU, s | at most |", "| --- | --- | --- |"]
    for name, spent, budget in measure():
        lines.append(f"| {name} | {spent:.2f} | {'' if budget is None else budget} |")
        within = within and (budget is None or spent <= budget)
    python = sys.version.split()[0]
    today = datetime.now(UTC).date()
    lines += [
        "",
        f"Measured on {today}, with Python {python} on a machine of {os.cpu_count()} cores.",
    ]
    print("\n".join(lines))
    if write:
        page = ROOT / "docs" / "cli.md"
        page.write_text(with_part(page.read_text(), "start", "\n".join(lines)))
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
