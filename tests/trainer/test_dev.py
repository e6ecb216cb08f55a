"""`ddpjob dev --local`: real agents, whose pods are kept."""

from pathlib import Path

import pytest

from tests.e2e.project import Project, developing
from tests.terminal import environment
from tests.waiting import wait_for


@pytest.mark.deep
def test_a_mistake_is_mended_and_the_last_of_many_saves_runs(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    good = (project.folder / "train.py").read_text()
    words = ("--local", "--directory", str(tmp_path / "jobs"), "--grace", "1")
    with developing(project.folder, *words, env=environment()) as dev:
        project.put("train.py", "raise ValueError('no such layer')\n")
        dev.until("ValueError: no such layer")
        dev.until("the pods stay for 30m")
        project.put("train.py", good)
        dev.until("as revision 3")
        for number in range(1, 21):
            project.save(number)
        dev.until("settings number: 20\n")
        wait_for(lambda: dev.out.rstrip().rpartition("settings number: ")[2].count("first step"))
        dev.interrupt()
        ended = dev.end()
    assert ended.out.count("ValueError: no such layer") <= 3 and "Failed" not in ended.out
