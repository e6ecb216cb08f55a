"""What is installed is what is locked, and nothing names a package registry."""

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.rendering import ROOT

LISTS = sorted((ROOT / "requirements").glob("*.txt"))


def pins(path: Path) -> dict[str, set[str]]:
    """Versions by package; two where they differ between Python releases."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(
        r"^([A-Za-z0-9._-]+)==([^\s;]+)", path.read_text(), re.MULTILINE
    ):
        found.setdefault(name, set()).add(version)
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=; ]", requirement)[0].lower() for requirement in requirements}


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_pin_has_hashes_and_no_list_names_a_host(path: Path) -> None:
    text = path.read_text()
    assert pins(path)
    assert "://" not in text and "--index" not in text and "--find-links" not in text
    for requirement in text.replace("\\\n", " ").splitlines():
        pinned = r"[\w.-]+(\[[\w, ]+\])?==[^#]+?(\s+--hash=sha256:[0-9a-f]{64})+\s*"
        assert re.fullmatch(pinned, requirement)


def test_the_lists_agree_with_each_other() -> None:
    together = [pins(path) for path in LISTS]
    for package in {name for each in together for name in each}:
        versions = {frozenset(each[package]) for each in together if package in each}
        assert len(versions) == 1, f"{package}: {versions}"


def test_the_operators_list_has_no_cli_and_no_kubernetes_client() -> None:
    shipped = set(pins(ROOT / "requirements" / "operator.txt"))
    assert not shipped & {"kubernetes", "typer", "rich", "torch", "numpy", "pytest"}
    assert {
        "kopf",
        "aiohttp",
        "pydantic",
        "jinja2",
        "orjson",
        "prometheus-client",
    } <= shipped


def test_the_lists_hold_what_the_packages_ask_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    trainer = tomllib.loads((ROOT / "images" / "trainer" / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    folder = ROOT / "requirements"
    assert names(project["dependencies"]) <= set(pins(folder / "cli.txt"))
    assert names(extras["operator"]) <= set(pins(folder / "operator.txt"))
    asked = names(project["dependencies"] + extras["operator"] + extras["dev"]) - {"ddpjob"}
    assert asked <= {name.lower() for name in pins(folder / "dev.txt")}
    assert names(trainer["dependencies"]) <= set(pins(folder / "torch.txt"))


def test_the_console_scripts_are_those_that_people_and_kubectl_look_for() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    # kubectl looks for `kubectl-NAME`, and for its completions for `kubectl_complete-NAME`.
    assert set(scripts) == {"ddpjob", "kubectl-ddpjob", "kubectl_complete-ddpjob"}
    for name, place in scripts.items():
        module, _, function = place.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), name


def stages(image: str) -> dict[str, tuple[str, str]]:
    """What each stage of an image's Dockerfile is built on, and its lines."""
    text = (ROOT / "images" / image / "Dockerfile").read_text()
    parts = re.split(r"^FROM (\S+)(?: AS (\S+))?$", text, flags=re.MULTILINE)[1:]
    found = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {name or "": (base, lines) for base, name, lines in found}


def below(image: str, stage: str) -> Iterator[str]:
    """The lines of a stage and of all that it is built on, from the top."""
    known = stages(image)
    while stage in known:
        stage, lines = known[stage]
        yield lines
    assert stage == "${BASE_IMAGE}"


@pytest.mark.parametrize(
    ("image", "target"),
    [("operator", ""), ("trainer", "native"), ("trainer", "accelerate"), ("trainer", "hf")],
)
def test_images_run_as_a_user_with_signals_arriving(image: str, target: str) -> None:
    own, *_ = lines = list(below(image, target))
    assert "USER 10001:10001" in own.splitlines()
    assert any('\nENTRYPOINT ["' in part for part in lines), "in exec form"


def test_the_build_context_is_an_allow_list() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")][0] == "*"


def test_workflows_pin_their_actions_and_only_read() -> None:
    workflows = list((ROOT / ".github" / "workflows").glob("*.yaml"))
    assert workflows
    for path in workflows:
        text = path.read_text()
        used = re.findall(r"uses: (\S+)", text)
        assert used
        assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action in used), used
        assert re.search(r"^permissions:\n  contents: read$", text, re.MULTILINE)
