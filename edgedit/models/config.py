"""Reading the fields that a model knows from a checkpoint's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

MAX_SIZE = 1 << 24  # of any number in a config: channels, tokens, a vocabulary
MAX_LAYERS = 1024  # each is built before a weight is looked for
MAX_LISTED = 256


def known_fields(config_class: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `values` that are fields of the dataclass; others do not change the maths and are dropped.

    Raises ValueError for an entry of another type than its field, or of a size that no model has.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"a config is a JSON object, not {_brief(values)}")
    hints = get_type_hints(config_class)
    known = [field.name for field in fields(config_class) if field.name in values]
    return {name: _checked(name, values[name], hints[name]) for name in known}


def _checked(name: str, value: Any, hint: Any) -> Any:
    """`value` as a field of type `hint` takes it: a list becomes a tuple."""
    if isinstance(hint, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        return None if value is None else _checked(name, value, kinds[0])
    if get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)) or len(value) > MAX_LISTED:
            raise ValueError(f"{name} is {_brief(value)}; it must be a list of at most {MAX_LISTED}")
        return tuple(_checked(name, item, get_args(hint)[0]) for item in value)
    if hint is int:
        smallest = 0 if name.endswith(("layers", "_id")) else 1
        largest = MAX_LAYERS if "layers" in name else MAX_SIZE
        if type(value) is not int or not smallest <= value <= largest:
            raise ValueError(f"{name} is {_brief(value)}; it must be an integer from {smallest} to {largest}")
    elif hint is float:
        if type(value) not in (int, float) or not abs(value) <= MAX_SIZE:
            raise ValueError(f"{name} is {_brief(value)}; it must be a number")
    elif not isinstance(value, hint):
        raise ValueError(f"{name} is {_brief(value)}; it must be of type {hint.__name__}")
    return value


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
