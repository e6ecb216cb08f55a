"""Reads an object of the input field by field, so that no field is lost in silence.

Whoever knows a field takes it. What nobody has taken is reported as unknown at the end.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ddpjob.api.messages import show
from ddpjob.errors import MAX_PATH, MAX_RULE, InvalidJob
from ddpjob.json_depth import Body
from ddpjob.text import printable

T = TypeVar("T")

_WORDS = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True)
class Note:
    """A field that is different in the DDPJob, or is not in it, and the reason."""

    path: str
    text: str
    is_lost: bool

    def __str__(self) -> str:
        """Return the note as one line."""
        return f"{self.path}: {'not carried over' if self.is_lost else 'changed'}: {self.text}"


class Notes:
    """The notes of one conversion, each once, in the order in which the fields were read."""

    def __init__(self) -> None:
        self._notes: dict[Note, None] = {}

    def __iter__(self) -> Iterator[Note]:
        """Return an iterator over the notes."""
        return iter(self._notes)

    def changed(self, path: str, text: str) -> None:
        """Note that a field is carried over, but means something else or stands elsewhere."""
        self.add(Note(printable(path, MAX_PATH), printable(text, MAX_RULE), is_lost=False))

    def lost(self, path: str, text: str) -> None:
        """Note that a field is not carried over."""
        self.add(Note(printable(path, MAX_PATH), printable(text, MAX_RULE), is_lost=True))

    def add(self, *notes: Note) -> None:
        """Add notes that are not there yet."""
        self._notes |= dict.fromkeys(notes)


def without_nulls(value: Any) -> Any:
    """Return `value` without nulls, which the API server drops too."""
    if isinstance(value, dict):
        return {str(name): without_nulls(part) for name, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


class Fields:
    """An object of the input, whose fields are taken one by one."""

    def __init__(self, value: Any, path: str, notes: Notes) -> None:
        if not isinstance(value, Mapping):
            rule = f"must be an object, got {show(value, path)}"
            raise InvalidJob(path or "(object)", rule, value)
        self.path, self.notes = path, notes
        self._left = dict(value)
        self._parts: list[Fields] = []

    def where(self, name: str) -> str:
        """Return the path of the field `name`."""
        return f"{self.path}.{name}" if self.path else name

    def error(self, name: str, rule: str, value: Any = None) -> InvalidJob:
        """Return the error that the field `name` breaks this rule."""
        path = self.where(name)
        return InvalidJob(path, f"{rule}, got {show(value, path)}", value)

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over the names of the fields that nobody has taken."""
        return iter(list(self._left))

    def take(self, name: str, kind: type[T]) -> T | None:
        """Take a field of this type, or None if it is absent.

        Raises InvalidJob if it is of another type.
        """
        value = self._left.pop(name, None)
        if value is None:
            return None
        is_number = kind is int and isinstance(value, bool)
        if is_number or not isinstance(value, kind):
            raise self.error(name, f"must be {_WORDS[kind]}", value)
        return value

    def need(self, name: str, kind: type[T]) -> T:
        """Return a field of this type, and leave it. Raises InvalidJob if it is absent."""
        if (value := self.take(name, kind)) is None:
            raise InvalidJob(self.where(name), "is required")
        self._left = {name: value, **self._left}
        return value

    def texts(self, name: str) -> list[str]:
        """Take a list of strings, empty if the field is absent."""
        found = self.take(name, list) or []
        for place, text in enumerate(found):
            if not isinstance(text, str):
                raise self.error(f"{name}[{place}]", "must be a string", text)
        return found

    def part(self, name: str) -> "Fields":
        """Take an object as fields of its own, without any field if it is absent."""
        found = Fields(self.take(name, dict) or {}, self.where(name), self.notes)
        self._parts.append(found)
        return found

    def parts(self, name: str, key: str = "name") -> list["Fields"]:
        """Take a list of objects as fields of their own. `key` names them in paths."""
        found = []
        for place, item in enumerate(self.take(name, list) or []):
            own = item.get(key) if isinstance(item, Mapping) else None
            title = own if isinstance(own, str) and own else place
            found.append(Fields(item, f"{self.where(name)}[{title}]", self.notes))
        self._parts += found
        return found

    def named(self, name: str, key: str = "name") -> dict[str, "Fields"]:
        """Take a list of objects by their names, which `key` has and keeps.

        Raises InvalidJob if one has none, or the name of another.
        """
        found: dict[str, Fields] = {}
        for part in self.parts(name, key):
            own = part.need(key, str)
            if own in found:
                raise part.error(key, "must be another one in each item of the list", own)
            found[own] = part
        return found

    def rest(self) -> Body:
        """Take all fields that are left, as they are."""
        found, self._left = self._left, {}
        return found

    def leave_out(self, reason: str, names: Iterable[str]) -> None:
        """Take each of these fields that is there, and note that it is not carried over."""
        for name in names:
            if (value := self._left.pop(name, None)) is not None:
                path = self.where(name)
                self.notes.lost(path, f"{show(value, path)}: {reason}")

    def end(self) -> None:
        """Note each field that nobody has taken, here and in all parts."""
        for name, value in self.rest().items():
            path = self.where(name)
            self.notes.lost(path, f"{show(value, path)}: unknown field")
        for part in self._parts:
            part.end()
