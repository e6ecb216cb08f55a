"""Which field somebody meant who has misspelt it."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from ddpjob.api.base import Model, fields_of, parts_of

# Comparing takes the square of a name's length. No field of ours is longer.
_LONGEST = 40
# How alike two names are, of 1: `nnode` and `nnodes` 0.91, `gpus` and `image` 0.22.
_ALIKE = 0.75


def unknown_field(name: str, known: Collection[str]) -> str:
    """Return the rule that a field of no such name breaks, with a known name that is like it."""
    like = [each for each in known if each.lower() == name.lower()]
    if not like and len(name) <= _LONGEST:
        like = get_close_matches(name, known, 1, _ALIKE)
    return f"unknown field (did you mean {like[0]}?)" if like else "unknown field"


def fields_at(model: type[Model], place: Sequence[str | int]) -> set[str]:
    """Return the JSON names of the fields at `place`, which begins at `model`."""
    models = [model]
    for name in place:
        if isinstance(name, str):  # a position in a list changes no model
            fields = [fields_of(each).get(name) for each in models]
            parts = [part for field in fields if field for part in parts_of(field)]
            models = [part for part in parts if isinstance(part, type) and issubclass(part, Model)]
    return {name for each in models for name in fields_of(each)}
