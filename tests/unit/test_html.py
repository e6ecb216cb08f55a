"""Jobs as HTML: what a notebook shows of them, whoever wrote their status."""

from typing import Any
from xml.etree import ElementTree

import pytest

from ddpjob.client.display import MAX_ROWS, live, table
from ddpjob.client.snapshot import Snapshot
from tests.builders import NOW, job_object

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=y>&\x1b[31m\u202e\x00"


def job(name: str = "digits", **status: Any) -> Snapshot:
    return Snapshot({**job_object(name), "status": status})


def read(text: str) -> ElementTree.Element:
    """The HTML, which is well-formed XML too."""
    return ElementTree.fromstring(f"<all>{text}</all>")


def tags(text: str) -> set[str]:
    return {element.tag.rpartition("}")[2] for element in read(text).iter()} - {"all"}


def hostile(value: str = HOSTILE) -> Snapshot:
    """A job whose every text is this one."""
    words = {"state": value, "reason": value, "message": value}
    summary = dict.fromkeys(("nodes", "step", "loss", "eta", "reason"), value)
    condition = {"type": "Running", "status": "False", "reason": value, "message": value}
    status = {**words, "summary": summary, "conditions": [condition]}
    return Snapshot({**job_object(value), "status": status})


def test_a_table_has_the_columns_of_ddpjob_get() -> None:
    summary = {"nodes": "2/2", "step": "40/100", "loss": "0.5", "reason": "Unschedulable: 0/9"}
    one = job("one", state="Running", summary=summary, restarts=3)
    cells = [cell.text or "".join(cell.itertext()) for cell in read(table([one], NOW)).iter("td")]
    assert cells == ["one", "Running", "2/2", "40/100", "0.5", "-", "3", "-", "Unschedulable: 0/9"]
    assert "and 5 more" in table([one] * (MAX_ROWS + 5), NOW)
    assert table([], NOW) == "<p>no jobs</p>"


def test_a_running_job_has_state_bar_curve_and_last_lines() -> None:
    points = [[step, 1 / step] for step in range(1, 30)]
    running = job(
        state="Running",
        summary={"nodes": "2/2", "step": "40/100"},
        progress={"percent": 40},
        curve=points,
        history=[{"step": 12}],
    )
    text = live(running, ["one", "two"], "detached")
    assert tags(text) >= {"svg", "path", "pre"} and "width: 40%" in text and "1 restart<" in text
    assert "one\ntwo" in text and "detached" in text and "nodes 2/2" in text
    assert tags(live(job(), [])) == {"div", "b", "span"}


@pytest.mark.parametrize("show", [lambda one: table([one], NOW), lambda one: live(one, [HOSTILE])])
def test_nothing_of_others_is_live_in_it(show: Any) -> None:
    text = show(hostile())
    assert tags(text) <= {"table", "thead", "tbody", "tr", "th", "td", "span", "div", "b", "pre"}
    assert "&lt;script&gt;" in text and not set("\x1b\u202e\x00") & set(text)
    assert not any(name[:2] == "on" for each in read(text).iter() for name in each.attrib)
