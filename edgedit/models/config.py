"""Reading the fields that a model knows from a checkpoint's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known_fields(config_class: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `values` that are fields of the dataclass; others do not change the maths and are dropped."""
    names = {field.name for field in fields(config_class)}
    return {name: value for name, value in values.items() if name in names}
