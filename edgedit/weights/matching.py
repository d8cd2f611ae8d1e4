"""Which tensors of a source stand for which parameters of a network, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from edgedit.weights.checkpoint import listing
from edgedit.weights.sources import TensorSource

Rename = Callable[[str], "str | None"]


@dataclass(frozen=True)
class Match:
    """Keys of each parameter that has any, parameters without one, keys of none, and keys of another shape."""

    keys: Mapping[str, list[str]]
    missing: list[str]
    unknown: list[str]
    misshapen: list[str]

    @property
    def problems(self) -> str:
        """What does not fit, empty where everything does."""
        kinds = {"missing": self.missing, "unknown": self.unknown, "misshapen": self.misshapen}
        return "; ".join(f"{len(names)} {kind}: {listing(names)}" for kind, names in kinds.items() if names)


def match(
    shapes: Mapping[str, tuple[int, ...]],
    source: TensorSource,
    rename: Rename | None = None,
    ignore: Iterable[str] = (),
) -> Match:
    """Compare the parameters of a network, by name, with the tensors of a source.

    Args:
        rename: key to parameter name; None for a key that is not needed.
        ignore: shell-style patterns of further keys that are not needed.
    """
    keys: dict[str, list[str]] = {}
    unknown, misshapen = [], []
    patterns = tuple(ignore)
    for key in source:
        name = rename(key) if rename else key
        if name is None or any(fnmatchcase(key, pattern) for pattern in patterns):
            continue
        if name not in shapes:
            unknown.append(key)
            continue
        keys.setdefault(name, []).append(key)
        if not _fits(source.shape(key), shapes[name]):
            misshapen.append(f"{key} is {list(source.shape(key))} for {list(shapes[name])}")
    return Match(keys, [name for name in shapes if name not in keys], unknown, misshapen)


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether shapes agree but for axes of length one, which formats and spellings of a network drop or add."""
    return [size for size in shape if size != 1] == [size for size in wanted if size != 1]
