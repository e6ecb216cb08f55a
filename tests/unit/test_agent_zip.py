"""The zip that the pods of a namespace mount: always the same, and true to the sources."""

import io
import zipfile
from base64 import b64encode
from pathlib import Path

import ddpjob_agent
from ddpjob.controller.controller import load_agent
from ddpjob.pods.agent_zip import pack
from tests.terminal import python

PACKAGE = Path(ddpjob_agent.__file__).parent


def test_the_zip_fits_into_a_config_map() -> None:
    assert len(b64encode(load_agent().archive)) <= 2**20 / 4


def test_the_zip_is_always_the_same() -> None:
    sources = {"__main__.py": "import ddpjob_agent\n", "__init__.py": "", "hooks/__init__.py": ""}
    backwards = dict(reversed(sources.items()))
    assert pack(sources) == pack(backwards) != pack({**sources, "main.py": ""})


def test_the_zip_has_every_source() -> None:
    with zipfile.ZipFile(io.BytesIO(load_agent().archive)) as archive:
        members = {name: archive.read(name).decode() for name in archive.namelist()}
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    sources = {path.relative_to(PACKAGE.parent): path for path in PACKAGE.rglob("*.py")}
    program = sources.pop(Path("ddpjob_agent/__main__.py"))
    assert members.pop("__main__.py") == program.read_text()
    assert members == {str(name): path.read_text() for name, path in sources.items()}


def test_a_traceback_names_the_line_of_the_source(tmp_path: Path) -> None:
    program = tmp_path / "agent.pyz"
    sources = {
        "__main__.py": (PACKAGE / "__main__.py").read_text(),
        "__init__.py": "",
        "warm/__init__.py": "",
        "warm/launch.py": "# why\n\ndef launch_torchrun(words: list) -> int:\n    return 1 / 0\n",
    }
    program.write_bytes(pack(sources))
    place = f'File "{program}/ddpjob_agent/warm/launch.py", line 4, in launch_torchrun\n'
    assert place in python(str(program), "launch", "cold").err
