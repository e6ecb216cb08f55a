"""`ddpjob doctor`: what a user needs of a cluster, and what is missing."""

from typing import Annotated

import typer

from ddpjob.cli.exits import Exit
from ddpjob.cli.options import Place, Recorded
from ddpjob.cli.output import as_text, document, say
from ddpjob.client.doctor import Check, Level, Part, checks

CODES: dict[Part, Exit] = {
    "server": Exit.NO_ACCESS,
    "rights": Exit.NO_ACCESS,
    "api": Exit.NOT_FOUND,
    "operator": Exit.NOT_FOUND,
    "admin": Exit.REFUSED,
}


def doctor(
    place: Place,
    admin: Annotated[bool, typer.Option("--admin", help="Check the installation too.")] = False,
    output: Recorded = "text",
) -> None:
    """Check login, API, operator, rights and free GPUs, and say what to do about each gap.

    ok is in order, warn works in part, FAIL has to be mended, and ? cannot be seen by this user.
    The exit code is 0 if nothing fails, 3 without the DDPJob API or an operator, 4 without a login
    or a right, and 5 if --admin finds a fault of the installation; the first check that fails
    decides. Nothing is created: the API server is asked to check a job, and stores none.
    """
    connection = place.client().connection
    found: list[Check] = []
    for check in checks(connection, admin=admin):
        found.append(check)
        if output == "text":
            say(f"{check.level:<4}  {check.text}")
            if check.advice and check.level is not Level.OK:
                say(f"      next: {check.advice}")
    failing = [check for check in found if check.level is Level.FAIL]
    if output == "json":
        listed = [
            {"part": c.part, "level": c.level, "text": c.text, "next": c.advice or None}
            for c in found
        ]
        document(as_text({"ok": not failing, "checks": listed}, "json"))
    raise typer.Exit(CODES[failing[0].part] if failing else Exit.OK)
