"""`python -m tests.clipage FILE`: FILE with its tables of exit codes and commands written anew.

They stand between two comments, `<!-- exit codes -->` or `<!-- commands -->`, and `<!-- end -->`.
Prints the file. Exits with 1 if one of the two has no place in it.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from ddpjob.cli import VERBS, exits, load
from ddpjob.cli.exits import CODES, Exit
from ddpjob.cli.job_options import ProgramCommand
from tests.parts import print_page, with_part

# Options that every command for a cluster has; they are described once.
SHARED = ("namespace", "context", "kubeconfig")


def exit_codes() -> Iterator[str]:
    """The exit codes, with the errors that lead to them."""
    yield "| code | meaning | errors of the SDK |"
    yield "| --- | --- | --- |"
    means = meanings()
    for code in Exit:
        errors = ", ".join(f"`{kind.__name__}`" for kind, leads in CODES if leads is code)
        yield f"| {code.value} | {means[code.name]} | {errors} |"


def meanings() -> dict[str, str]:
    """The text below each member of `Exit`."""
    [body] = [
        node.body
        for node in ast.parse(inspect.getsource(exits)).body
        if isinstance(node, ast.ClassDef) and node.name == "Exit"
    ]
    found: dict[str, str] = {}
    for one, other in zip(body, body[1:], strict=False):
        if isinstance(one, ast.Assign) and isinstance(other, ast.Expr):
            target, text = one.targets[0], other.value
            assert isinstance(target, ast.Name) and isinstance(text, ast.Constant)
            found[target.id] = " ".join(str(text.value).split())
    return found


def commands() -> Iterator[str]:
    """A section for each command."""
    for name in sorted(VERBS):
        yield from _command(name, load(name))


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    options = [each for each in options if not each.hidden]
    shared = [each.name for each in options if each.name in SHARED and each.default is None]
    shown = [each for each in options if each.name not in (*shared, "help")]
    usage = "".join(f" {_usage(each)}" for each in arguments)
    words = " [-- ARGS...]" if isinstance(command, ProgramCommand) else ""
    yield f"### ddpjob {name}\n"
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))
    yield "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    yield f"\n`ddpjob {name}{usage}{' [OPTIONS]' if options else ''}{words}`"
    rows = [*map(_argument, arguments), *map(_option, shown)]
    if rows:
        yield "\n| argument or option | default | meaning |"
        yield "| --- | --- | --- |"
        yield from rows
    if shared:
        yield f"\nAnd {', '.join(f'`--{each}`' for each in SHARED if each in shared)}."
    yield ""


def _usage(each: Any) -> str:
    name = (each.metavar or each.name.upper()) + ("…" if each.nargs == -1 else "")
    return name if each.required else f"[{name}]"


def _argument(each: Any) -> str:
    return f"| `{each.metavar or each.name.upper()}` | | {_text(each.help)} |"


def _option(each: Any) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(each.opts, key=len, reverse=True))
    names += f", `{each.secondary_opts[0]}`" if each.secondary_opts else ""
    default = each.default
    text = "" if default in (None, False, "") or callable(default) else str(default)
    text = {"True": each.opts[0] if default is True else text}.get(text, text)
    return f"| {names} | {f'`{text}`' if text else ''} | {_text(each.help)} |"


def _text(help: str | None) -> str:
    return " ".join((help or "").replace("|", "\\|").split())


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "exit codes": exit_codes,
    "commands": commands,
}


def with_tables(text: str) -> str:
    """`text` with each part written anew. Raises ValueError where one has no place."""
    for name, lines in TABLES.items():
        text = with_part(text, name, "\n".join(lines()).strip("\n"))
    return text


if __name__ == "__main__":
    print_page(with_tables)
