"""Prints the checks of `ddpjob doctor`."""

import json

from ddpjob.cli.exits import Exit
from ddpjob.cli.options import Place, Record
from ddpjob.cli.say import document, say
from ddpjob.client.check import Check, Level, Part
from ddpjob.client.checks import checks

CODES = {
    Part.SERVER: Exit.NO_ACCESS,
    Part.RIGHTS: Exit.NO_ACCESS,
    Part.API: Exit.NOT_FOUND,
    Part.OPERATOR: Exit.NOT_FOUND,
    Part.ADMIN: Exit.REFUSED,
}


def diagnose(place: Place, output: Record, *, admin: bool) -> Exit:
    """Print the checks as they come, and return the exit code of the first that fails."""
    found: list[Check] = []
    for check in checks(place.client().connection, admin=admin):
        found.append(check)
        if output is Record.TEXT:
            say(f"{check.level:<4}  {check.text}")
            if check.advice and check.level is not Level.OK:
                say(f"      next: {check.advice}")
    failing = [check for check in found if check.level is Level.FAIL]
    if output is Record.JSON:
        listed = [
            {"part": c.part, "level": c.level, "text": c.text, "next": c.advice or None}
            for c in found
        ]
        document(json.dumps({"ok": not failing, "checks": listed}, indent=2))
    return CODES[failing[0].part] if failing else Exit.OK
