"""Jobs as HTML, as a notebook shows them: a table, and one job while it runs. Pure.

Status and log lines are anybody's text: printable already, and escaped here. Styles are inline, and
nothing is fetched.
"""

import re
from collections.abc import Sequence
from html import escape

from ddpjob import why
from ddpjob.client.snapshot import Snapshot
from ddpjob.plot import points_of, svg
from ddpjob.text import printable
from ddpjob.times import duration

COLUMNS = ("NAME", "STATE", "NODES", "STEP", "LOSS", "ETA", "RESTARTS", "AGE", "REASON")
# Rows of a table, and characters of a line of a log.
MAX_ROWS, MAX_LINE = 200, 240
_COLOURS = {"Running": "#15803d", "Succeeded": "#15803d", "Restarting": "#b45309"}
_COLOURS |= {"Failed": "#b91c1c"}
_STYLE = "font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
# Colours of a terminal.
_ESCAPES = re.compile(r"\x1b\[[0-9;]{0,32}m")


def table(jobs: Sequence[Snapshot], now: float) -> str:
    """Return a table of the jobs, with the columns of `ddpjob get`."""
    heads = "".join(f'<th style="text-align: left">{name}</th>' for name in COLUMNS)
    rows = [_row(job, now) for job in jobs[:MAX_ROWS]]
    text = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    if len(jobs) > MAX_ROWS:
        text += f"<p>and {len(jobs) - MAX_ROWS} more</p>"
    return text if jobs else "<p>no jobs</p>"


def live(job: Snapshot, lines: Sequence[str], note: str = "") -> str:
    """Return one job as it is now: state, bar, loss curve and the last lines of its rank 0."""
    figures = [f"{name} {text}" for name, text in figures_of(job).items() if text not in ("-", "0")]
    head = f"<b>{escape(job.name)}</b> {_state(job)} {escape('  '.join(figures))}"
    parts = [f"<div>{head}</div>", _bar(job)]
    parts += [f"<div>{escape(job.reason)}</div>"] if job.reason else []
    found = points_of(job.body.get("status") or {})
    if len(found.points) > 1:
        parts.append(f'<div style="max-width: 480px">{svg(found, job.name)}</div>')
    if lines:
        text = "\n".join(escape(shown(line)) for line in lines)
        parts.append(f'<pre style="margin: 4px 0; opacity: 0.8">{text}</pre>')
    parts += [f'<pre style="margin: 4px 0">{escape(note)}</pre>'] if note else []
    return f'<div style="{_STYLE}; font-size: 13px; line-height: 1.5">{"".join(parts)}</div>'


def figures_of(job: Snapshot) -> dict[str, str]:
    """Return what `kubectl get` shows of the job, by column; `-` where there is nothing."""
    names = ("nodes", "step", "loss", "eta")
    found = {name: why.text(job.body, "status", "summary", name, limit=64) for name in names}
    found["restarts"] = str(why.number(job.body, "status", "restarts") or 0)
    return {name: text or "-" for name, text in found.items()}


def shown(line: str) -> str:
    """Return a line of a log without colours, printable and of a bounded length."""
    return printable(_ESCAPES.sub("", line[: 4 * MAX_LINE]), MAX_LINE)


def _row(job: Snapshot, now: float) -> str:
    age = "-" if job.created is None else duration(max(0.0, now - job.created))
    found = figures_of(job)
    cells = [escape(job.name), _state(job)]
    cells += [escape(found[name]) for name in ("nodes", "step", "loss", "eta", "restarts")]
    cells += [age, escape(job.reason)]
    text = "".join(f'<td style="text-align: left">{cell}</td>' for cell in cells)
    return f"<tr>{text}</tr>"


def _state(job: Snapshot) -> str:
    colour = _COLOURS.get(job.state, "inherit")
    return f'<span style="color: {colour}">{escape(job.state)}</span>'


def _bar(job: Snapshot) -> str:
    """Return a bar of the part of the steps that is done, if their number is known."""
    percent = why.number(job.body, "status", "progress", "percent")
    if percent is None:
        return ""
    part = min(100, max(0, percent))
    outer = "width: 480px; max-width: 100%; height: 6px; background: #8884; margin: 4px 0"
    inner = f"width: {part}%; height: 6px; background: #2563eb"
    return f'<div style="{outer}"><div style="{inner}"></div></div>'
