"""Finds out whether a script would notice that torch was imported before it began."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import sys
import warnings
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Iterator, Mapping, Sequence  # noqa: UP035 - Python 3.8

if TYPE_CHECKING:
    Root = tuple[str, str]
    """A folder, and the only package in it that is the script's own; "": all."""

# Python, the loader, C libraries and torch read these once, as they start or are imported.
READ_AT_IMPORT = re.compile(
    r"PYTHON|LD_|LANG|LC_|TZ\Z|LOGLEVEL\Z|CXX\Z|MALLOC_|GLIBC_|(OMP|GOMP|GOTO|KMP|MKL|MKLDNN"
    r"|OPENBLAS|BLIS|NUMEXPR|VECLIB|DNNL|ONEDNN|NPY|NUMPY|ATEN|TRITON|KINETO|THP|CUTLASS"
    r"|AOT_?INDUCTOR|INDUCTOR)_"
    r"|(PY)?TORCH(?!_NCCL_|ELASTIC_|_HOME\Z|_EXTENSIONS_DIR\Z|_CUDA_ARCH_LIST\Z|_FORCE_)"
)
# These too, where the job has such a module imported.
READ_BY = (("HF_", "huggingface_hub"), ("TRANSFORMERS_", "transformers"))
# So many files of the script's own are read, and so many bytes of them all.
MOST_FILES, MOST_BYTES = 2000, 2**24
# What a source has that changes variables; others are not parsed, which takes time.
CHANGES = re.compile(rb"environ|putenv|unsetenv|dotenv")
IMPORTS = re.compile(
    r"(?:^|[:;])[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|.*)|import[ \t]+(.*))"
    r"|import_module\(\s*[\"']([\w.]+)",
    re.MULTILINE,
)


def differing(env: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The first variable that is read at import and differs between two environments, or ""."""
    names = sorted(name for name in {**env, **other} if is_read(name))
    return next((name for name in names if env.get(name) != other.get(name)), "")


def is_read(name: str) -> bool:
    """Whether a variable has been read by something that is imported."""
    by = [module for prefix, module in READ_BY if name.startswith(prefix)]
    return READ_AT_IMPORT.match(name) is not None or any(module in sys.modules for module in by)


def why_cold(words: Sequence[str], cwd: str, env: Mapping[str, str]) -> str:
    """Why `[-m, MODULE, …]` or `[SCRIPT, …]` is to be started as a process of its own; "": warm.

    Installed packages are not read, but for that of MODULE.
    """
    folder, path = cwd, ""
    if words[0] != "-m":
        path = os.path.realpath(os.path.join(cwd, words[0]))
        folder = os.path.dirname(path)
    hidden = next(hides(folder), "")
    if hidden:
        return f"{hidden} hides a module that is imported already"
    roots = [(root, "") for root in (folder, *env.get("PYTHONPATH", "").split(os.pathsep))]
    todo = [path]
    if not path:
        package = words[1].partition(".")[0]
        roots.append((home_of(package), package))
        todo = [*sources_of(roots, words[1] + ".__main__")]
    seen: set[str] = set()
    size = 0
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        try:
            with open(file, "rb") as source:
                content = source.read(MOST_BYTES)
            size += len(content)
            if len(seen) > MOST_FILES or size > MOST_BYTES:
                return f"{folder} has more files than are read for what they set"
            if file == path or CHANGES.search(content):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # those are the script's to give
                    tree = ast.parse(content)
                for line, name in changes(tree, env):
                    if not name or is_read(name):
                        what = name or "variables that are not known beforehand"
                        return f"{file}:{line} sets {what}, which may be read at import"
        except Exception as problem:  # Python itself says best what is wrong with it
            if file == path:
                return f"{file} cannot be read: {type(problem).__name__}"
            continue
        for base, module in imports(content.decode("utf-8", "replace"), file):
            todo += sources_of([(base, "")] if base else roots, module)
    return ""


def home_of(package: str) -> str:
    """The folder in which an installed package or module is; "" where there is none."""
    spec = PathFinder.find_spec(package, sys.path)
    places = list(getattr(spec, "submodule_search_locations", None) or [])
    place = places[0] if places else getattr(spec, "origin", None)
    return os.path.dirname(place) if isinstance(place, str) else ""


def hides(folder: str) -> Iterator[str]:
    """The modules in a folder that the script would get in place of those imported already."""
    with contextlib.suppress(OSError):
        stems = {entry.partition(".")[0] for entry in os.listdir(folder)} - {"__main__"}
        for stem in sorted(stems & {name.partition(".")[0] for name in list(sys.modules)}):
            spec = PathFinder.find_spec(stem, [folder])
            if spec is not None and spec.loader is not None:  # a folder without __init__ comes last
                yield str(spec.origin)


def sources_of(roots: Sequence[Root], module: str) -> Iterator[str]:
    """The sources of a module of the script's own, and of the packages that it is in."""
    parts = module.split(".")
    for root, only in roots:
        path = root
        for part in parts if root and only in ("", parts[0]) else []:
            path = os.path.join(path, part)
            yield from filter(os.path.isfile, (f"{path}.py", f"{path}/__init__.py"))


def imports(source: str, file: str) -> Iterator[tuple[str, str]]:
    """Modules that a source may import: a folder, "" for any root, and a name from there on."""
    for origin, names, more, called in IMPORTS.findall(source):
        level = len(origin) - len(origin.lstrip("."))
        base = file if level else ""
        for _ in range(level):
            base = os.path.dirname(base)
        module = origin[level:]
        for name in [called] if called else re.findall(r"[\w.]+", names or more):
            yield base, ".".join(filter(None, (module, name)))


def changes(tree: ast.AST, env: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Line and name of each variable that a source changes; "": of any.

    What leaves it as it is in `env` is no change.
    """
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete)):
            value = text(node.value) if isinstance(node, ast.Assign) else ""
            for target in getattr(node, "targets", None) or [node.target]:  # type: ignore[union-attr]
                if isinstance(target, ast.Subscript) and is_environ(target.value):
                    name = text(target.slice)
                    if not value or env.get(name) != value:
                        yield node.lineno, name
                elif is_environ(target):
                    yield node.lineno, ""
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name == "load_dotenv":
                yield node.lineno, ""
            elif name in ("putenv", "unsetenv") or is_environ(getattr(node.func, "value", node)):
                yield from ((node.lineno, word) for word in changed(name, node, env))


def changed(method: str, call: ast.Call, env: Mapping[str, str]) -> Iterator[str]:
    """The variables that a call of a method of `os.environ` changes; "": any."""
    first = text(call.args[0]) if call.args else ""
    stays = {"setdefault": first in env, "pop": first not in env, "unsetenv": first not in env}
    if method in ("setdefault", "pop", "unsetenv", "putenv", "__setitem__", "clear"):
        if not first or not stays.get(method, False):
            yield first
    elif method == "update":
        for argument in call.args:
            if isinstance(argument, ast.Dict):
                yield from (text(key) if key else "" for key in argument.keys)
            else:
                yield ""
        yield from (keyword.arg or "" for keyword in call.keywords)


def is_environ(node: ast.AST) -> bool:
    """Whether an expression is `os.environ`, or `environ`."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in ("environ", "environb")


def text(node: ast.AST) -> str:
    """The text that a constant is; "" where it is none."""
    node = getattr(node, "value", node) if type(node).__name__ == "Index" else node  # Python 3.8
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else ""
