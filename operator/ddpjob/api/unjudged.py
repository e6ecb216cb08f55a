"""Rules over several fields that pydantic does not come to, because another field is broken.

pydantic checks the rules of a model once all of its fields are right. A user wants to read of all
broken rules at once. So the rules that read none of the broken fields are checked here.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ddpjob.api.base import Broken, Model, Unique, duplicates, fields_of, parts_of
from ddpjob.api.messages import broken_problem, path_of
from ddpjob.errors import InvalidJob

# Where something is in an object: names of fields, keys and positions in lists.
_Place = tuple[int | str, ...]
M = TypeVar("M", bound=Model)


def unjudged(model: type[Model], value: Any, error: ValidationError) -> Iterator[InvalidJob]:
    """Yield an InvalidJob for each broken rule that `error` cannot have.

    `error` is what pydantic has found when it read `value` as `model`.
    """
    places = [detail["loc"] for detail in error.errors(include_url=False, include_context=False)]
    for place, broken, part in _model(model, value, (), places):
        yield broken_problem(path_of(place), broken, part)


def partial(model: type[M], value: Mapping[str, Any], broken: Set[str]) -> M:
    """Return `value` as `model`, without the `broken` fields.

    Fields are known by their JSON names. If a broken field has a default, the model has that.
    """
    known = {field.alias: name for name, field in model.model_fields.items()}
    found = {
        known[alias]: _reader(model, known[alias]).validate_python(part, strict=True)
        for alias, part in value.items()
        if alias in known and alias not in broken
    }
    return model.model_construct(set(found), **found)


def broken_fields(error: ValidationError, *parents: str) -> set[str]:
    """Return the JSON names of the fields below `parents` in which `error` has anything."""
    depth = len(parents)
    places = [detail["loc"] for detail in error.errors(include_url=False, include_context=False)]
    return {str(loc[depth]) for loc in places if loc[:depth] == parents and len(loc) > depth}


_Found = Iterator[tuple[_Place, Broken, Any]]


def _model(model: type[Model], value: Any, place: _Place, places: Sequence[_Place]) -> _Found:
    """Yield the broken rules of a model and of those within it; `value` may be a list of them."""
    inside = _inside(place, places)
    if not inside:
        return  # pydantic has checked it
    if isinstance(value, list):
        for position, item in enumerate(value):
            yield from _model(model, item, (*place, position), inside)
    elif isinstance(value, Mapping):
        broken = {str(loc[len(place)]) for loc in inside}
        # An unknown field may be a misspelt one, so what the model as a whole lacks is unknown too.
        is_misspelt = not broken <= fields_of(model).keys()
        rules = [
            rule
            for rule in model.checks
            if not rule.reads & broken and (rule.field or not is_misspelt)
        ]
        if rules:
            read = partial(model, value, broken)
            for rule in rules:
                if (found := rule.broken_by(read)) is not None:
                    yield place, found, value
        for alias, field in fields_of(model).items():
            if alias in broken and alias in value:
                yield from _field(field, value[alias], (*place, alias), inside)


def _field(field: FieldInfo, value: Any, place: _Place, places: Sequence[_Place]) -> _Found:
    """Yield the same of a field, and the equal items of a list that has a broken item."""
    models: list[type[Model]] = []
    for part in parts_of(field):
        if isinstance(part, Unique) and isinstance(value, list) and _inside(place, places):
            for found in duplicates(part.keys, (_keys(item, part.keys) for item in value)):
                yield place, found, value
        elif isinstance(part, type) and issubclass(part, Model):
            models.append(part)
    for model in models:
        yield from _model(model, value, place, places)


def _keys(item: Any, names: Sequence[str]) -> Hashable:
    """Return the values of these fields; if they are not all texts, what equals nothing else."""
    found = tuple(item.get(name) for name in names) if isinstance(item, Mapping) else ()
    return found if found and all(isinstance(value, str) for value in found) else object()


def _inside(place: _Place, places: Sequence[_Place]) -> list[_Place]:
    return [loc for loc in places if loc[: len(place)] == place and len(loc) > len(place)]


@cache
def _reader(model: type[Model], name: str) -> TypeAdapter[Any]:
    return TypeAdapter(model.model_fields[name].rebuild_annotation())
