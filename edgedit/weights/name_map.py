"""How published files spell the tensors of a network, and where each stands in the names used here.

The spellings are data: `names/ARCHITECTURE.json`. A rule leads from a pattern of the file to one of diffusers or
transformers; both may be modules, for weight and bias alike. In patterns

    {i}, {j}   stand for a number, the same on both sides
    {-i}       on the right stands for numbers counted from the end: the highest becomes 0
    {last}     stands for the highest number at its place

and a rule may also say that the rows of the file's tensor are several tensors one after another, in equal `shares`
or others, that its halves are to `swap`, or that it is to be turned over (`transpose`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "names"
_PLACE = re.compile(r"\{(-?)(\w+)\}")
_SUFFIX = r"(?P<suffix>\.weight|\.bias)?"
_NUMBER = "[0-9]{1,4}"  # longer ones are no layers


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows of a file's tensor go.

    begin, end, of  the rows from begin / of to end / of
    swap            the second half stands first
    transpose       columns are rows
    """

    name: str
    begin: int = 0
    end: int = 1
    of: int = 1
    swap: bool = False
    transpose: bool = False

    @property
    def is_whole(self) -> bool:
        return (self.begin, self.end) == (0, self.of)


@dataclass(frozen=True)
class Rule:
    """One line of a spelling."""

    source: str
    targets: tuple[str, ...]
    shares: tuple[int, ...]
    swap: bool
    transpose: bool

    @classmethod
    def of(cls, source: str, value: Any) -> Rule:
        fields = value if isinstance(value, dict) else {"to": value}
        names = fields["to"] if isinstance(fields["to"], list) else [fields["to"]]
        shares = tuple(fields.get("shares", [1] * len(names)))
        assert len(shares) == len(names), f"{source}: {len(shares)} shares for {len(names)} names"
        return cls(source, tuple(names), shares, fields.get("swap", False), fields.get("transpose", False))

    def target(self, place: int, name: str) -> Target:
        """What goes to the target at `place`, called `name`."""
        begin = sum(self.shares[:place])
        return Target(
            name, begin, begin + self.shares[place], sum(self.shares), self.swap, self.transpose
        )

    def inverted(self, place: int) -> Rule:
        """The rule from the target at `place` back to the source, as far as names go."""
        target, source = self.targets[place], self.source
        for name in re.findall(r"\{-(\w+)\}", target):
            target = target.replace(f"{{-{name}}}", f"{{{name}}}")
            source = source.replace(f"{{{name}}}", f"{{-{name}}}")
        return Rule(target, (source,), (1,), False, False)


@dataclass(frozen=True)
class Spelling:
    """One way to name the tensors of an architecture; one without rules is that of diffusers or transformers.

    signature  a tensor that tells it
    not_below  ends of prefixes below which that tensor means something else
    """

    name: str
    signature: str
    rules: tuple[Rule, ...]
    not_below: tuple[str, ...] = ()

    def bind(self, keys: Iterable[str]) -> NameMap:
        """The map for a network whose tensors the file calls `keys` (or its modules)."""
        return NameMap(self.rules, keys)


@dataclass(frozen=True)
class Architecture:
    """What `names/NAME.json` says.

    name          such as "flux"
    class_name    of diffusers or transformers
    part          transformer, vae, clip or t5
    ignore        patterns of tensors, in the names used here, that no network needs
    """

    name: str
    class_name: str
    part: str
    ignore: tuple[str, ...]
    spellings: tuple[Spelling, ...]

    def spelling(self, name: str) -> Spelling:
        return next(spelling for spelling in self.spellings if spelling.name == name)


@cache
def architectures() -> tuple[Architecture, ...]:
    """All that are known."""
    return tuple(architecture(path.stem) for path in sorted(FOLDER.glob("*.json")))


@cache
def architecture(name: str) -> Architecture:
    """The one that `names/NAME.json` describes."""
    content = json.loads((FOLDER / f"{name}.json").read_text())
    spellings = tuple(
        Spelling(
            spelling,
            entry["signature"],
            tuple(Rule.of(source, value) for source, value in entry["rules"].items()),
            tuple(entry.get("not_below", ())),
        )
        for spelling, entry in content["spellings"].items()
    )
    return Architecture(name, content["class"], content["part"], tuple(content.get("ignore", ())), spellings)


class NameMap:
    """The rules of a spelling, for one network.

    `targets` leads from the file's names to those used here, `sources` back. Both take tensors and modules.
    """

    def __init__(self, rules: tuple[Rule, ...], keys: Iterable[str]) -> None:
        self.rules = rules
        self._highest = _highest_numbers(keys)
        self.patterns = [(re.compile(self._regex(rule.source) + _SUFFIX + "$"), rule) for rule in rules]

    def targets(self, key: str) -> list[Target]:
        """What becomes of a tensor or module of the file. Empty for one that no rule knows."""
        if not self.rules:
            return [Target(key)]
        for pattern, rule in self.patterns:
            if match := pattern.match(key):
                names = [self._filled(name, match) for name in rule.targets]
                return [rule.target(place, name) for place, name in enumerate(names)]
        return []

    def sources(self, keys: Iterable[str]) -> dict[str, list[Target]]:
        """The file's names for `keys`, names used here, each with what stands in it, in order.

        Names that no rule leads to are left out, as is a fused tensor of which a part is not among the keys.
        """
        keys = list(keys)
        if not self.rules:
            return {key: [Target(key)] for key in keys}
        origins = [(rule, place) for rule in self.rules for place in range(len(rule.targets))]
        backward = NameMap(tuple(rule.inverted(place) for rule, place in origins), keys)
        found: dict[str, dict[int, Target]] = {}
        complete: dict[str, int] = {}
        for key in keys:
            for (pattern, inverse), (rule, place) in zip(backward.patterns, origins, strict=True):
                if match := pattern.match(key):
                    source = backward._filled(inverse.targets[0], match)
                    found.setdefault(source, {})[place] = rule.target(place, key)
                    complete[source] = len(rule.targets)
                    break
        return {
            source: [targets[place] for place in range(complete[source])]
            for source, targets in found.items()
            if len(targets) == complete[source]
        }

    def _filled(self, name: str, match: re.Match[str]) -> str:
        """A pattern of the right side with the numbers of a match."""

        def number(place: re.Match[str]) -> str:
            value = match["last" if place[2] == "last" else place[2]]
            if not place[1]:
                return value
            prefix = match.string[: match.start(place[2])]
            return str(self._highest[prefix] - int(value))

        return _PLACE.sub(number, name) + (match["suffix"] or "")

    def _regex(self, source: str) -> str:
        """A regular expression for a left side."""
        text, end = "", 0
        for place in _PLACE.finditer(source):
            text += re.escape(source[end : place.start()])
            end = place.end()
            numbers = _NUMBER
            if place[2] == "last":
                numbers = str(self._highest.get(source[: place.start()], -1))
            text += f"(?P<{place[2]}>{numbers})"
        return text + re.escape(source[end:])


def _highest_numbers(keys: Iterable[str]) -> Mapping[str, int]:
    """The highest number that follows each prefix of the keys."""
    highest: dict[str, int] = {}
    for key in keys:
        for place in re.finditer(rf"(?<=\.){_NUMBER}(?=\.|$)", key):
            prefix = key[: place.start()]
            highest[prefix] = max(highest.get(prefix, -1), int(place[0]))
    return highest
