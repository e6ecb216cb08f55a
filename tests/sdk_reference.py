"""`python -m tests.sdk_reference FILE`: FILE with the reference of the SDK written anew.

It stands between the comments `<!-- reference -->` and `<!-- end -->`, and is made of signatures
and docstrings as they stand in the sources, so it is the same with every Python. Prints the file.
"""

import ast
import re
from collections.abc import Iterator

from tests.cluster.tiers import ROOT
from tests.parts import print_page, with_part

PACKAGE = ROOT / "operator" / "ddpjob"
# The modules, the classes of each, and what of them the page has no room for.
CLASSES = (
    ("client/client", "Client"),
    ("client/job", "Job"),
    ("client/snapshot", "Snapshot"),
    ("cluster/logs", "LogLine"),
    ("client/snapshot", "Event"),
)
LEFT_OUT = {"news", "ways_back", "apart", "until", "rerun_with", "wait_until_gone"}
LEFT_OUT |= {"Job.close"}


def reference() -> str:
    """The reference, as Markdown."""
    parts = [
        "### launch",
        _code(_function("client/launch", "launch")),
        *_google("client/launch", "launch"),
    ]
    for module, name in CLASSES:
        found = _class(module, name)
        parts += [f"### {name}", _prose(ast.get_docstring(found) or "")]
        rows = [f"| {member} | {words} |" for member, words in _members(found)]
        parts.append("\n".join(["| name | what you get |", "| --- | --- |", *rows]))
    return "\n\n".join(parts)


def with_reference(text: str) -> str:
    """`text` with the reference written anew. Raises ValueError where it has no place."""
    return with_part(text, "reference", reference())


def _tree(module: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{module}.py").read_text())


def _function(module: str, name: str) -> ast.FunctionDef:
    found = (n for n in _tree(module).body if isinstance(n, ast.FunctionDef) and n.name == name)
    return next(found)


def _class(module: str, name: str) -> ast.ClassDef:
    found = (n for n in _tree(module).body if isinstance(n, ast.ClassDef) and n.name == name)
    return next(found)


def _members(found: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Names with their parameters, and what each gives, in the order of the source."""
    fields = [n for n in found.body if isinstance(n, ast.AnnAssign | ast.Expr)]
    for field, doc in zip(fields, [*fields[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            words = doc.value if isinstance(doc, ast.Expr) else None
            text = words.value if isinstance(words, ast.Constant) else ""
            yield f"`{ast.unparse(field.target)}`", _line(str(text))
    for member in found.body:
        if isinstance(member, ast.FunctionDef) and not _is_hidden(found.name, member.name):
            kinds = [ast.unparse(each) for each in member.decorator_list]
            call = "" if "property" in kinds else f"({_parameters(member)})"
            yield f"`{member.name}{call}`", _line(ast.get_docstring(member) or "")


def _is_hidden(kind: str, name: str) -> bool:
    return name.startswith("_") or bool({name, f"{kind}.{name}"} & LEFT_OUT)


def _parameters(function: ast.FunctionDef) -> str:
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    for star in (arguments.vararg, arguments.kwarg):
        if star is not None:
            star.annotation = None
    return ast.unparse(arguments).removeprefix("self").removeprefix(", ").replace("|", "\\|")


def _code(function: ast.FunctionDef) -> str:
    words = f"{function.name}({_parameters(function)})"
    lines, line = [], ""
    for word in words.split(", "):
        if len(line) + len(word) > 98:
            lines.append(f"{line},")
            line = "    " + word
        else:
            line = f"{line}, {word}" if line else word
    return "\n".join(["```python", *lines, line, "```"])


def _google(module: str, name: str) -> Iterator[str]:
    """The parts of a docstring that has sections of arguments and errors."""
    doc = ast.get_docstring(_function(module, name)) or ""
    head, _, rest = doc.partition("\n\nArgs:\n")
    arguments, _, errors = rest.partition("\n\nRaises:\n")
    yield _prose(head)
    for title, text in (("argument", arguments), ("raises", errors)):
        rows = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
        lines = [f"| `{key}` | {' '.join(words.split())} |" for key, words in rows]
        yield "\n".join([f"| {title} | |", "| --- | --- |", *lines])


def _line(text: str) -> str:
    return " ".join(_prose(text).split())


def _prose(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print_page(with_reference)
