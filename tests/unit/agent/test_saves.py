"""When the script has saved, as the agent sees it."""

import os
import threading
from pathlib import Path

import pytest

from ddpjob_agent import saves
from ddpjob_agent.saves import MOST_FILES, Save, look, watch


def test_each_change_of_the_folder_is_seen(tmp_path: Path) -> None:
    folder, seen = tmp_path / "checkpoints", []

    def is_news() -> bool:
        seen.append(look(str(folder)))
        return seen[-1] not in seen[:-1]

    assert is_news() and not is_news(), "it is not there yet"
    folder.mkdir()
    assert is_news()
    (folder / "model.tmp").write_text("1")
    assert is_news()
    (folder / "model.tmp").write_text("12")
    assert is_news()
    (folder / "step-1").mkdir()
    (folder / "step-1" / "shard").write_text("1")
    assert is_news()
    (folder / "step-2").mkdir()
    assert is_news()
    (folder / "step-2" / "shard").write_text("1")
    assert is_news() and not is_news()
    deep = folder / "run" / "step-3" / "ranks"
    deep.mkdir(parents=True)
    assert is_news()
    (deep / "shard").write_text("1")
    assert is_news()
    (deep / "shard").write_text("12")
    assert is_news() and not is_news()
    before = (folder / "model.tmp").stat()
    (folder / "model.tmp").rename(folder / "model")
    os.utime(folder / "model", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert is_news(), "a file that is renamed keeps its time"


def test_a_large_folder_costs_no_more_than_some_files(tmp_path: Path) -> None:
    for number in range(MOST_FILES + 9):
        (tmp_path / str(number)).touch()
    assert len(look(str(tmp_path))) == 1 + MOST_FILES


@pytest.mark.parametrize(
    ("looks", "over"),
    [
        pytest.param({0.0: 1, 0.3: 2, 0.6: 2}, [0.6], id="one file"),
        pytest.param({0.0: 1, 0.3: 2, 2.3: 3, 2.6: 3, 3.2: 3, 3.5: 3}, [3.5], id="a pause"),
        pytest.param({0.0: 1, 0.3: 2, 50.3: 3, 53.0: 3, 53.3: 3}, [53.3], id="a long one"),
        pytest.param({0.0: 1, 0.3: 2, 60.3: 3, 60.6: 3, 60.9: 4, 61.2: 4}, [60.6, 61.2], id="log"),
        pytest.param({0.0: 1, 0.3: 2, 0.6: None, 0.9: 3, 1.2: 3, 1.5: 4, 1.8: 4}, [1.8], id="two"),
    ],
)
def test_a_save_is_over_once_nothing_changes(
    looks: dict[float, int | None], over: list[float]
) -> None:
    """Nor for half of the time that it has taken."""
    save = Save()
    seen = {at: None if found is None else [(found, 1)] for at, found in looks.items()}
    assert [at for at, found in seen.items() if save.is_over(found, at + 100)] == over


def test_a_save_is_seen_while_it_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, done = [[(1, 1)], [(1, 1)], [(2, 1)], [(2, 1)], [(2, 1)]], threading.Event()
    matters = iter([True] * len(looks) + [False, True, True])
    found = list[int]()

    def look_once(folder: str) -> list[tuple[int, int]]:
        return looks.pop(0) if looks else [(4, 1)]

    def is_wanted() -> bool:
        try:
            return next(matters)
        except StopIteration:
            done.set()
            threading.Event().wait()  # for ever
            raise

    monkeypatch.setattr(saves, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(saves, "look", look_once)
    watch(str(tmp_path), is_wanted, lambda: found.append(len(looks)))
    assert done.wait(60)
    assert found == [1], "what changed while it did not matter is none"
