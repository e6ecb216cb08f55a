"""What is written as YAML is read again as it was, by this project and by others."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ddpjob.documents import documents, to_yaml
from ddpjob.text import printable_lines
from tests.fuzz import HOSTILE

# Texts that one reader or another takes for something else.
AMBIGUOUS = (
    *("y", "n", "Yes", "off", "null", "~", "", "1e3", "1_000", "0o17", "017", "0x1F", "1:30"),
    *(".inf", ".5", "-", "---", "...", "=", "<<", "2026-01-31", "a: b", "a #b", "- a", "? a"),
    *(" a", "a ", "\n", "\na", "a\n\n", " a\nb", "a\n b\n", "a\t\nb", "\ta\nb", "a \nb", "#\na"),
    *("|\na", "%a\nb", "import os\n\nif a:\n    b()\n", "é\nü", "…"),
)
texts = st.sampled_from((*AMBIGUOUS, *HOSTILE)) | st.text(max_size=30)
scalars = texts | st.integers(-(2**63), 2**63) | st.booleans() | st.floats(-1e6, 1e6)
bodies = st.dictionaries(
    texts.filter(lambda key: key != "<<"),
    st.recursive(scalars, lambda part: st.lists(part, max_size=4) | st.dictionaries(texts, part)),
    max_size=4,
)


def read(text: str, folder: Path) -> Any:
    file = folder / "job.yaml"
    file.write_bytes(text.encode())
    return list(documents(str(file)))


@given(bodies)
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, body: Any) -> None:
    text = to_yaml(body)
    assert read(text, tmp_path_factory.getbasetemp()) == [body]
    assert printable_lines(text) == text


def test_scripts_stay_readable_and_numbers_stay_in_one_line() -> None:
    body = {"args": ["-c", "import os\nprint('é')\n"], "onExitCodes": [1, 2], "image": "a:1"}
    assert to_yaml(body) == (
        "args:\n- -c\n- |\n  import os\n  print('é')\nonExitCodes: [1, 2]\nimage: a:1\n"
    )


def test_one_hidden_character_has_all_others_escaped() -> None:
    text = to_yaml({"a": "é", "b": "\u202egpj.exe"})
    assert text.isascii() and "\\u202E" in text


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_another_reader_sees_the_same_text(text: str) -> None:
    assert yaml.safe_load(to_yaml({"a": [text]})) == {"a": [text]}
