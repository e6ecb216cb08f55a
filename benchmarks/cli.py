"""The CPU time that the command line takes to start: `python -m benchmarks.cli`.

Each command runs several times; the least is printed, user and system time together. The first
request goes to a server on this machine that answers with an empty list.
"""

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

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


def main() -> None:
    """Measure, and print a line for each command."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with TemporaryDirectory() as folder:
        env = environment(kubeconfig(Path(folder), server.server_port))
        cases = [
            ("python alone", (sys.executable, "-c", ""), env, None),
            ("--version", (*COMMAND, "--version"), env, "local"),
            ("--help", (*COMMAND, "--help"), env, "local"),
            ("logs --help", (*COMMAND, "logs", "--help"), env, "local"),
            ("a TAB", COMMAND, {**env, **TAB}, "local"),
            ("get: the first request", (*COMMAND, "get"), env, "request"),
        ]
        for name, command, environ, budget in cases:
            spent = cpu_seconds(command, environ)
            of = f"  of {BUDGETS[budget]}" if budget else ""
            print(f"{name:<24} {spent:.3f} s{of}")
    server.shutdown()
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
