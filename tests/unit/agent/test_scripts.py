"""Which scripts would notice that torch was imported before they began."""

import os
import sys
import types
from pathlib import Path

import pytest

from ddpjob_agent.warm import scripts
from ddpjob_agent.warm.scripts import differing, why_cold

SETS = "sets {}, which may be read at import"
OMP = SETS.format("OMP_NUM_THREADS")
ANY = SETS.format("variables that are not known beforehand")


@pytest.fixture(autouse=True)
def imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that other tests import, and that a fork server would ask for."""
    for _, module in scripts.READ_BY:
        monkeypatch.delitem(sys.modules, module, raising=False)


def reason(folder: Path, source: str, files: dict[str, str] | None = None, /, **env: str) -> str:
    """Why a script with this source starts cold."""
    for name, content in {"train.py": source, **(files or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return why_cold(["train.py"], str(folder), env)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '1'", OMP),
        ("del os.environ['OMP_NUM_THREADS']", OMP),
        ("os.environ.setdefault('OMP_NUM_THREADS', '1')", OMP),
        ("os.environ.update({'RANK': '1', 'OMP_NUM_THREADS': '1'})", OMP),
        ("os.environ.update(settings)", ANY),
        ("os.environ |= settings", ANY),
        ("os.environ.update(OMP_NUM_THREADS='1')", OMP),
        ("dotenv.load_dotenv()", ANY),
        ("os.environ['MASTER_ADDR'] = 'localhost'", ""),
        ("os.environ['TORCH_NCCL_BLOCKING_WAIT'] = '1'", ""),
        ("print(os.environ['OMP_NUM_THREADS'])", ""),
        ("threads = os.environ.get('OMP_NUM_THREADS')", ""),
    ],
)
def test_a_change_of_what_is_read_at_import_is_found(tmp_path: Path, line: str, why: str) -> None:
    found = reason(tmp_path, f"import os\n{line}\n")
    assert found == (f"{tmp_path}/train.py:2 {why}" if why else "")


@pytest.mark.parametrize(
    ("line", "same", "other"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '4'", {"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS": "3"}),
        ("os.environ.setdefault('OMP_NUM_THREADS', '1')", {"OMP_NUM_THREADS": "4"}, {}),
        ("os.environ.pop('OMP_NUM_THREADS', None)", {}, {"OMP_NUM_THREADS": "4"}),
    ],
)
def test_what_leaves_a_variable_as_the_job_has_it_is_no_change(
    tmp_path: Path, line: str, same: dict[str, str], other: dict[str, str]
) -> None:
    source = f"import os\n{line}\n"
    assert reason(tmp_path, source, **same) == ""
    assert reason(tmp_path, source, **other).endswith(OMP)


@pytest.mark.parametrize(
    "line",
    [
        "import settings, settings as s",
        "try: x\nexcept E: x\nfrom package import (a,\n    settings)",
        "import package.settings",
        "from package import early",
        "importlib.import_module('settings')",
    ],
)
def test_modules_of_the_scripts_own_are_read(tmp_path: Path, line: str) -> None:
    sets = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n"
    files = {
        "settings.py": sets,
        "package/__init__.py": "",
        "package/settings.py": sets,
        "package/early.py": "from . import settings\n",
    }
    assert reason(tmp_path, f"{line}\n", files).endswith(OMP)
    assert reason(tmp_path, "import other\n", files) == ""


def test_modules_on_the_pythonpath_are_read(tmp_path: Path) -> None:
    files = {"src/settings.py": "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n"}
    assert reason(tmp_path, "import settings\n", files) == ""
    path = os.pathsep.join(["/nowhere", str(tmp_path / "src")])
    assert reason(tmp_path, "import settings\n", files, PYTHONPATH=path).endswith(OMP)


def test_the_installed_package_of_a_module_is_read_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    for name, source in {
        "mine/__init__.py": "",
        "mine/train.py": "import mine.model, theirs\n",
        "mine/model.py": "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n",
        "mine/plain.py": "import theirs\n",
        "theirs.py": "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n",
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(source)
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    assert why_cold(["-m", "mine.train"], str(tmp_path), {}).endswith(f"mine/model.py:2 {OMP}")
    assert why_cold(["-m", "mine.plain"], str(tmp_path), {}) == ""
    assert why_cold(["-m", "absent"], str(tmp_path), {}) == ""


def test_a_file_beside_the_script_may_hide_a_module(tmp_path: Path) -> None:
    hides = f"{tmp_path}/json.py hides a module that is imported already"
    assert reason(tmp_path, "", {"json.py": ""}) == hides
    (tmp_path / "json.py").unlink()
    (tmp_path / "json").mkdir()  # a folder without __init__ comes after the installed one
    assert reason(tmp_path, "") == ""


def test_what_python_cannot_read_python_may_tell(tmp_path: Path) -> None:
    assert reason(tmp_path, "x = (\n") == f"{tmp_path}/train.py cannot be read: SyntaxError"
    assert reason(tmp_path, f"x = {'-' * 100_000}1\n").startswith(f"{tmp_path}/train.py cannot be")
    assert why_cold(["absent.py"], str(tmp_path), {}).endswith("cannot be read: FileNotFoundError")
    # in a module it may never come to that
    assert reason(tmp_path, "import other\n", {"other.py": "environ = (\n"}) == ""


def test_what_is_too_much_to_read_starts_cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "MOST_FILES", 2)
    files = {"a.py": "import b\n", "b.py": ""}
    assert reason(tmp_path, "", files) == ""
    assert reason(tmp_path, "import a\n", files).startswith(f"{tmp_path} has more files than")
    monkeypatch.setattr(scripts, "MOST_FILES", 9)
    assert reason(tmp_path, "import a\n", files) == ""
    monkeypatch.setattr(scripts, "MOST_BYTES", 10)
    assert reason(tmp_path, "import a\n", files).startswith(f"{tmp_path} has more files than")


def test_a_module_of_the_jobs_own_brings_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "import os\nos.environ['HF_HOME'] = '/models'\n"
    assert reason(tmp_path, line) == ""
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.ModuleType("huggingface_hub"))
    assert reason(tmp_path, line).endswith(SETS.format("HF_HOME"))


def test_environments_differ_by_what_is_read_at_import() -> None:
    assert differing({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "1", "RANK": "3"}) == ""
    assert differing({}, {"PYTHONPATH": "x", "LD_PRELOAD": "y"}) == "LD_PRELOAD"
    assert differing({"TZ": "UTC"}, {}) == "TZ"
