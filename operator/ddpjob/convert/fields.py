"""Reads an object of the input field by field, so that no field is lost in silence.

A table has what becomes of most fields. Code takes the others. What nobody has taken is reported as
unknown at the end.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ddpjob.api.messages import misfit, show
from ddpjob.errors import MAX_PATH, MAX_RULE, InvalidJob
from ddpjob.json_depth import Body
from ddpjob.text import printable

T = TypeVar("T")

_WORDS = {str: "a string", int: "an integer", bool: "true or false", list: "a list"}


@dataclass(frozen=True)
class Note:
    """A field that is different in the DDPJob, or is not in it, and the reason."""

    path: str
    text: str
    is_lost: bool

    def __str__(self) -> str:
        """Return the note as one line."""
        return f"{self.path}: {'not carried over' if self.is_lost else 'changed'}: {self.text}"


class Notes(dict[Note, None]):
    """The notes of one conversion, each once, in the order in which the fields were read."""

    def changed(self, path: str, text: str) -> None:
        """Note that a field is carried over, but means something else or stands elsewhere."""
        self[Note(printable(path, MAX_PATH), printable(text, MAX_RULE), is_lost=False)] = None

    def lost(self, path: str, text: str) -> None:
        """Note that a field is not carried over."""
        self[Note(printable(path, MAX_PATH), printable(text, MAX_RULE), is_lost=True)] = None


@dataclass(frozen=True)
class Same:
    """The field is `name` of the spec, which is a path. A note has what is different there."""

    name: str
    note: str = ""


@dataclass(frozen=True)
class Dropped:
    """The field is not carried over, for this reason. The default of the field needs no note."""

    reason: str
    default: Any = False


@dataclass(frozen=True)
class Refused:
    """No DDPJob does what an object with this field does."""

    rule: str


# What becomes of fields, by their paths. `*` are all that are left of an object.
Table = Mapping[str, Same | Dropped | Refused]


def cleaned(value: Any) -> Any:
    """Return a copy without nulls, which the API server drops too, and with fractions as texts.

    Only quantities are fractions, and a DDPJob has them as texts.
    """
    if isinstance(value, dict):
        return {str(name): cleaned(part) for name, part in value.items() if part is not None}
    if isinstance(value, list):
        return [cleaned(part) for part in value]
    return repr(value) if isinstance(value, float) else value


class Fields:
    """An object of the input, whose fields are taken one by one.

    The name of a field may be a path, such as `spec.suspend`.
    """

    def __init__(self, value: Any, path: str, notes: Notes) -> None:
        if not isinstance(value, Mapping):
            raise misfit(path or "(object)", "must be an object", value)
        self.path, self.notes = path, notes
        self._left = dict(value)
        self._parts: dict[str, Fields] = {}

    def where(self, name: str) -> str:
        """Return the path of the field `name`."""
        return f"{self.path}.{name}" if self.path else name

    def error(self, name: str, rule: str, value: Any = None) -> InvalidJob:
        """Return the error that the field `name` breaks this rule."""
        return misfit(self.where(name), rule, value)

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over the names of the fields that nobody has taken."""
        return iter(list(self._left))

    def part(self, path: str) -> "Fields":
        """Return an object as fields of its own, without any field if it is absent."""
        name, _, rest = path.partition(".")
        if name not in self._parts:
            self._parts[name] = Fields(self._left.pop(name, {}), self.where(name), self.notes)
        return self._parts[name].part(rest) if rest else self._parts[name]

    def parts(self, path: str) -> list["Fields"]:
        """Take a list of objects as fields of their own, which paths call by their names."""
        found = []
        for place, item in enumerate(self.take(path, list) or []):
            name = item.get("name") if isinstance(item, Mapping) else None
            title = name if isinstance(name, str) and name else place
            found.append(Fields(item, self.where(f"{path}[{title}]"), self.notes))
            self._parts[f"{path}[{place}]"] = found[-1]
        return found

    def take(self, path: str, kind: type[T]) -> T | None:
        """Take a field of this type, or None if it is absent."""
        *parts, name = path.split(".")
        owner = self.part(".".join(parts)) if parts else self
        value = owner._left.pop(name, None)
        if value is None:
            return None
        is_number = kind is int and isinstance(value, bool)
        if is_number or not isinstance(value, kind):
            raise self.error(path, f"must be {_WORDS[kind]}", value)
        return value

    def rest(self) -> Body:
        """Take all fields that are left, as they are. Nothing below them is unknown then."""
        found, self._left, self._parts = self._left, {}, {}
        return found

    def read(self, table: Table) -> Body:
        """Take the fields of a table, and return what they are in the spec of a DDPJob."""
        found: Body = {}
        for path, row in table.items():
            if path.endswith("*") and isinstance(row, Dropped):
                owner = self.part(path[:-2]) if path != "*" else self
                owner.leave_out(row.reason, list(owner))
            elif (value := self.take(path, object)) is not None:
                self._become(row, path, value, found)
        return found

    def _become(self, row: Same | Dropped | Refused, path: str, value: Any, spec: Body) -> None:
        where = self.where(path)
        if isinstance(row, Refused):
            raise self.error(path, row.rule, value)
        if isinstance(row, Dropped):
            if value != row.default:
                self.notes.lost(where, f"{show(value, where)}: {row.reason}")
        elif value is not False:
            if row.note:
                self.notes.changed(where, f"{show(value, where)}: is {row.name}, {row.note}")
            *objects, name = row.name.split(".")
            for part in objects:
                spec = spec.setdefault(part, {})
            spec[name] = value

    def leave_out(self, reason: str, names: Iterable[str]) -> None:
        """Take each of these fields that is there, and note that it is not carried over."""
        for name in names:
            if (value := self._left.pop(name, None)) is not None:
                path = self.where(name)
                self.notes.lost(path, f"{show(value, path)}: {reason}")

    def end(self) -> None:
        """Note each field that nobody has taken, here and in all parts."""
        self.leave_out("unknown field", list(self._left))
        for part in self._parts.values():
            part.end()
