"""How commands end."""

from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner, Result

from ddpjob.cli import app
from ddpjob.cli.exits import CODES, Exit, exit_code, explain, report
from ddpjob.errors import (
    Conflict,
    DDPJobError,
    Expired,
    Forbidden,
    InvalidJob,
    JobFailed,
    JobTimeout,
    LoginFailed,
    NotFound,
    NotInstalled,
    Refused,
    Unavailable,
    cluster_error,
)

RBAC = (
    'pods "llama-3-1" is forbidden: User "ana" cannot get resource "pods/log" in API group "" '
    'in the namespace "team-a"'
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JobFailed("a", "MaxRestartsExceeded"), 1),
        (InvalidJob("spec", "is wrong"), 2),
        (cluster_error(422, "Invalid", "spec.nnodes"), 2),
        (cluster_error(404, "NotFound", "x"), 3),
        (NotInstalled(404, "NotFound", "x"), 3),
        (LoginFailed("x"), 4),
        (cluster_error(403, "Forbidden", RBAC), 4),
        (cluster_error(403, "Forbidden", "exceeded quota: gpus"), 5),
        (cluster_error(503, "", ""), 4),
        (cluster_error(409, "AlreadyExists", "x"), 5),
        (JobTimeout(None, "x"), 124),
    ],
)
def test_each_error_has_its_code(error: DDPJobError, code: int) -> None:
    assert exit_code(error) == code


def test_every_error_has_a_code() -> None:
    def all_of(kind: type[DDPJobError]) -> set[type[DDPJobError]]:
        return {kind}.union(*map(all_of, kind.__subclasses__()))

    assert {Expired, Conflict, NotFound, Refused, Unavailable} <= all_of(DDPJobError)
    for kind in all_of(DDPJobError):
        assert any(issubclass(kind, known) for known, _ in CODES)


def test_a_missing_right_is_named_by_the_servers_own_words() -> None:
    error = cluster_error(403, "Forbidden", RBAC)
    assert isinstance(error, Forbidden)
    assert (error.user, error.verb, error.resource, error.namespace) == (
        *("ana", "get", "pods/log"),
        "team-a",
    )
    assert explain(error) == (
        "you may not get pods/log in namespace team-a (you are ana)",
        'ask an admin of namespace team-a for the role "view"',
    )
    everywhere = RBAC.replace('in the namespace "team-a"', "at the cluster scope")
    text, advice = explain(
        cluster_error(403, "", everywhere.replace("cannot get", "cannot create"))
    )
    assert text.endswith("in the whole cluster (you are ana)")
    assert advice == 'ask the cluster\'s admin for the role "edit"'


def test_an_error_is_two_lines_that_nobody_can_forge(capsys: pytest.CaptureFixture[str]) -> None:
    error = LoginFailed("bad\nerror: FAKE\x1b[2J", "do\nthis")
    assert report(error) is Exit.NO_ACCESS
    assert capsys.readouterr() == ("", "error: bad\\nerror: FAKE\\x1b[2J\n  next: do\\nthis\n")


Fails = Callable[[BaseException], Result]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Fails:
    """Run a command that raises an error."""

    def run(error: BaseException) -> Result:
        def crd() -> None:
            raise error

        monkeypatch.setattr("ddpjob.cli.crd.crd", crd)
        return CliRunner().invoke(app, ["crd"])

    return run


def test_a_command_ends_with_the_code_of_its_error(fails: Fails) -> None:
    ended = fails(NotFound(404, "NotFound", "gone"))
    assert (ended.exit_code, ended.stderr) == (3, "error: gone\n")
    ended = fails(typer.BadParameter("no", param_hint="--x"))
    assert ended.exit_code == 2 and "no" in ended.stderr
    assert fails(typer.Exit(17)).exit_code == 17


def test_what_nobody_has_foreseen_is_one_line_and_no_failed_job(
    fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake = ZeroDivisionError("of\nerror: FAKE\x1b[2J" + "x" * 10_000)
    ended = fails(mistake)
    first, second = ended.stderr.splitlines()
    assert ended.exit_code == Exit.UNFORESEEN
    assert first.startswith("error: ZeroDivisionError: of\\nerror: FAKE\\x1b[2Jxx")
    assert len(first) < 5000 and "DDPJOB_DEBUG=1" in second
    monkeypatch.setenv("DDPJOB_DEBUG", "1")
    traced = fails(mistake)
    assert "\x1b" not in traced.stderr and "raise error" in traced.stderr
    assert traced.stderr.endswith(ended.stderr)


def test_what_an_interrupt_leaves_behind_is_said(fails: Fails) -> None:
    stopped = KeyboardInterrupt()
    stopped.add_note("digits may be left behind\x1b[2J")
    ended = fails(stopped)
    assert ended.exit_code == 130 and "digits may be left behind\\x1b[2J\n" in ended.stderr
