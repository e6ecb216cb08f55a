"""docs/failures.md, from what was seen. Pure."""

import re
from collections.abc import Mapping

from tests.api.failures.table import JOB, Failure, Kind, starts_warm

HEAD = """# Failures

What `status.failure` says of each of {total} kinds of failure. Each is run: a DDPJob on a real API
server, with the operator as it is installed. The pods of {real} are processes, with real torchrun
and gloo, and their scripts know nothing of ddpjob; those of the {played} marked "played" are
objects without processes, because the kubelet is to do to them what cannot be asked of a real one.
The first cause must be named completely: reason, rank, pod, exit code or signal, exception, and the
sentence that tells what happened. A rank that never comes has not failed: there the one that waited
is named, with the address that nobody answered at. No GPU is involved, so no NCCL. The {cold}
kinds whose processes start warm may restart in place, and are judged while their pods wait for it;
scripts whose jobs have the same spec run one after the other in the same pods. They run a second
time, cold and without a restart, where the ended pods are judged, and must say the same.

**Right: {right} of {total}.** The wrong ones are in the table, with the reason.
`make bench-failures` runs all and writes this page; `make test-all` runs the same and
fails where a mark would change.

| | kind | `status.failure` |
| --- | --- | --- |
"""


def page(kinds: tuple[Kind, ...], seen: Mapping[str, Failure], before: str = "") -> str:
    """The page; `seen` is by the job's name.

    Kinds that did not run have their rows of the page `before`.
    """
    old = {line.split(" | ")[1]: line for line in before.splitlines() if line.count(" | ") > 1}
    rows = [row(kind, seen.get(kind.job), old) for kind in kinds]
    played = sum(bool(kind.life) for kind in kinds)
    cold = sum(map(starts_warm, kinds))
    right = sum(line.startswith("| ✓") for line in rows)
    counts = {"cold": cold, "right": right, "total": len(kinds), "real": len(kinds) - played}
    return HEAD.format(played=played, **counts) + "\n".join(rows) + "\n"


def is_right(kind: Kind, failure: Failure) -> bool:
    """Whether the failure names what began it."""
    return not kind.cause.differences(failure[JOB], failure)


def row(kind: Kind, failure: Failure | None, old: Mapping[str, str]) -> str:
    """One kind."""
    name = f"{kind.name} (played)" if kind.life else kind.name
    if failure is None:
        return old.get(name, f"| – | {name} | not run on this machine |")
    right = is_right(kind, failure)
    said = told(failure)
    if not right:
        said += f"<br>**wrong**: {kind.why}"
    return f"| {'✓' if right else '✗'} | {name} | {said} |"


def told(failure: Failure) -> str:
    """The failure in one cell, without what is different each time."""
    end = failure.get("signal") or failure.get("exitCode")
    words = [
        failure["reason"],
        *([f"rank {failure['rank']}"] if "rank" in failure else []),
        *([f"{'signal' if 'signal' in failure else 'exit code'} {end}"] if end is not None else []),
    ]
    message = failure["message"].replace(f"{failure[JOB]}-0-", "JOB-0-")
    for pattern, word in VARIES:
        message = re.sub(pattern, word, message)
    message = message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"
    return f"{', '.join(words)}: `{message.replace('|', '¦').replace('`', chr(39))}`"


LONGEST = 240
VARIES = (
    (r" This is typically caused by .*GLHF! \S+(?=;|$)", ""),  # gloo's advice
    (r"(?<=in )/tmp/\S+", "FOLDER"),
    (r"[\w.-]*/(\S*/)?(?=[\w.-]+\.(py|cc|cpp)\b)", ""),  # folders
    (r"(?<='|\s)/\S*/(?=python)", ""),
    (r"(?<=\s)/\S*/(?=ddpjob-code)", "/"),  # where the pod's volumes are, on this machine
    (r"\bpid(\(s\))? \d+", r"pid\1 …"),
    (r"\[?127(\.\d+){3}(\]?:\d+)?", "ADDRESS"),
    (r"port: \d+", "port: …"),
    (r"(?<=after )\d+ s", "… s"),
)
