"""The start of the command line, by what it imports: time depends on the machine."""

import json
from pathlib import Path

import pytest

from ddpjob.cli import VERBS, load
from tests.terminal import environment, python

# Each takes longer to import than all of `ddpjob --help`, or is of no use to a cluster command.
HEAVY = {
    *("aiohttp", "jinja2", "kubernetes", "re2", "urllib3", "yaml"),
    *("ddpjob.api", "ddpjob.controller", "ddpjob.plan", "ddpjob.pods"),
    *("ddpjob.local", "ddpjob.settings"),
}
# What a verb needs to ask a cluster and to print the answer.
CLIENT = {"asyncio", "orjson", "rich", "ddpjob.client", "ddpjob.cluster"}
OPERATOR = {
    *("aiohttp", "jinja2", "kopf", "prometheus_client"),
    *("ddpjob.api", "ddpjob.controller", "ddpjob.plan", "ddpjob.pods", "ddpjob.local"),
    *("ddpjob.settings", "ddpjob.cluster.kube"),
}
PROGRAM = """
import json, sys
from contextlib import suppress
words = sys.argv[1:]
try:
    from ddpjob.cli import main
    for command in words[0].split(","):
        sys.argv = ["ddpjob", *command.split(), *words[1:]]
        with suppress(SystemExit):
            main()
finally:
    sys.stderr.write("\\n" + json.dumps(sorted(sys.modules)))
"""


def imported(commands: str = "", *arguments: str, **environ: str) -> set[str]:
    """The modules that commands in a row, each with these arguments, have imported at the end."""
    ended = python("-c", PROGRAM, commands, *arguments, env={**environment(), **environ})
    return set(json.loads(ended.err.splitlines()[-1]))


TAB = {"_DDPJOB_COMPLETE": "complete_bash", "COMP_CWORD": "1", "COMP_WORDS": "ddpjob d"}


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_the_first_words_import_nothing_heavy(option: str) -> None:
    found = imported("", option)
    assert not found & (HEAVY | CLIENT)
    assert len(found) < 330, "typer with its own imports has 280"
    assert not found & {f"ddpjob.cli.{verb}" for verb in VERBS}


@pytest.mark.parametrize("verb", VERBS)
def test_the_list_of_the_verbs_has_the_first_sentence_of_each_help(verb: str) -> None:
    assert load(verb).get_short_help_str(999) == VERBS[verb]


def test_no_help_imports_anything_heavy() -> None:
    found = imported(",".join(VERBS), "--help")
    assert not found & HEAVY
    assert len(found) < 500, "of all commands together"
    assert {f"ddpjob.cli.{verb}" for verb in VERBS} <= found


@pytest.mark.parametrize("words", ["ddpjob d", "ddpjob get --st", "ddpjob logs -o j"])
def test_completion_imports_nothing_heavy(words: str) -> None:
    count = str(len(words.split()) - 1)
    found = imported(**{**TAB, "COMP_WORDS": words, "COMP_CWORD": count})
    assert not found & HEAVY and len(found) < 430


@pytest.mark.parametrize(
    ("commands", "allowed"),
    [
        (
            "get,logs x,wait x,describe x,suspend x,delete x -y,resume x,rerun x,stacks x,top x,"
            "plot x,doctor,doctor --admin,version",
            set[str](),
        ),
        # The models are all that it needs before: it checks the job without a cluster.
        ("submit -m x --image i", {"ddpjob.api"}),
    ],
)
def test_the_first_request_needs_nothing_of_the_operator(
    commands: str, allowed: set[str], tmp_path: Path
) -> None:
    server = {"server": "http://127.0.0.1:9"}
    config = {
        "clusters": [{"name": "c", "cluster": server}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "current-context": "c",
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    found = imported(commands, KUBECONFIG=str(path))
    assert "kubernetes" in found, "it has made a request"
    assert not found & OPERATOR - allowed
