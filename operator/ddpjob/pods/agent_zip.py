"""Packs the agent's sources into one zip that Python runs as it is: `python3 agent.pyz …`.

Every job stores the zip, so comments, docstrings, annotations and needless spaces are left out.
Each line keeps its number, so a traceback from a pod points at the lines of the sources.
"""

import ast
import io
import tokenize
import zipfile
from collections.abc import Iterator, Mapping

PACKAGE = "ddpjob_agent"
HOOKS = "hooks/"  # in a pod a folder on PYTHONPATH, and no package
SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER)
# From Python 3.12 on, the text between the braces of an f-string, whose own braces come undoubled.
BETWEEN_BRACES = getattr(tokenize, "FSTRING_MIDDLE", None)

Position = tuple[int, int]
"""Line and byte, as `ast` counts them."""


def pack(sources: Mapping[str, str]) -> bytes:
    """The zip of `sources`, which are named by their paths in the package: always the same bytes.

    Python runs its `__main__.py`, which finds the other modules in one member: in members of their
    own they would share no repetitions, and the zip would be a fifth larger.
    """
    texts = {path: compact(source) for path, source in sorted(sources.items())}
    members = {"__main__.py": texts.pop("__main__.py")}
    for path in [path for path in texts if path.startswith(HOOKS)]:
        members[f"{PACKAGE}/{path}"] = texts.pop(path)
    del members[f"{PACKAGE}/{HOOKS}__init__.py"]
    members["modules"] = "\0".join(part for module in texts.items() for part in module)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in members.items():
            member = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            member.external_attr = 0o644 << 16
            archive.writestr(member, text, zipfile.ZIP_DEFLATED, compresslevel=9)
    return content.getvalue()


def compact(source: str) -> str:
    """`source` without what only readers and type checkers need; each token stays on its line."""
    lines = [*source.splitlines(), ""]
    spans = sorted(_needless(ast.parse(source)), reverse=True)
    text, row, depth, begins = "", 1, 0, True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        at = token.start[0], len(lines[token.start[0] - 1][: token.start[1]].encode())
        while spans and spans[-1][1] <= at:
            spans.pop()
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            depth += 1 if token.type == tokenize.INDENT else -1
        elif token.type == tokenize.NEWLINE:
            begins = True
        elif not _is_silent(token) and not (spans and spans[-1][0] <= at):
            if token.start[0] > row:
                text += "\n" * (token.start[0] - row) + " " * (depth if begins else 0)
            elif _is_word(text[-1:]) and _is_word(token.string[:1]):
                text += " "
            text += _as_written(token)
            row, begins = token.end[0], False
    return text + "\n"


def _needless(tree: ast.Module) -> Iterator[tuple[Position, Position]]:
    """Beginning and end of docstrings, annotations, and imports that only annotations need.

    The fields of a class keep their annotations, since it may be a dataclass.
    """
    fields = {id(child) for node in ast.walk(tree) for child in _body(node, ast.ClassDef)}
    for node in ast.walk(tree):
        body = _body(node, ast.AST)
        texts = [child for child in body if _is_text(child)]
        if texts != body or node is tree:  # a body that is nothing else must stay one
            yield from ((_start(child), _end(child)) for child in texts)
        if isinstance(node, ast.stmt) and _is_for_types(node):
            yield _start(node), _end(node)
        elif isinstance(node, ast.arg) and node.annotation:
            yield (node.lineno, node.col_offset + len(node.arg)), _end(node.annotation)
        elif isinstance(node, ast.AnnAssign) and node.value and id(node) not in fields:
            yield _end(node.target), _end(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.returns:
            yield _start(node.returns), _end(node.returns)


def _body(node: ast.AST, kind: type[ast.AST]) -> list[ast.stmt]:
    """The statements of `node`, if it is of this kind and has some."""
    body = getattr(node, "body", None)
    return body if isinstance(node, kind) and isinstance(body, list) else []


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is nothing but a string."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _is_for_types(node: ast.stmt) -> bool:
    """Whether a statement imports from `typing`, or is an `if TYPE_CHECKING`."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.ImportFrom) and node.module == "typing"


def _start(node: ast.expr | ast.stmt) -> Position:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt) -> Position:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _is_silent(token: tokenize.TokenInfo) -> bool:
    """Whether nothing is written for a token: an arrow goes with the annotation after it."""
    return token.type in SILENT or (token.type, token.string) == (tokenize.OP, "->")


def _is_word(text: str) -> bool:
    """Whether a name or a number goes on with this character."""
    return text.isalnum() or text == "_"


def _as_written(token: tokenize.TokenInfo) -> str:
    if token.type == BETWEEN_BRACES:
        return token.string.replace("{", "{{").replace("}", "}}")
    return token.string
