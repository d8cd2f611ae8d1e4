"""Which parameters the modules that a LoRA file spells stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from edgedit.errors import CheckpointError
from edgedit.weights.checkpoint import listing
from edgedit.weights.deltas import Deltas, Term
from edgedit.weights.lora_file import Factors, read_lora
from edgedit.weights.pieces import Piece


@dataclass(frozen=True)
class Vocabulary:
    """How LoRA files spell the modules of one component.

    component       its name in the pipeline
    prefixes        what may stand before a module's name
    flat_prefixes   the same where the dots of a name are spelt as underscores
    modules         the network's own names and those of other layouts, to the pieces of their weights
    shapes          of the network's parameters
    """

    component: str
    prefixes: Sequence[str]
    flat_prefixes: Sequence[str]
    modules: Mapping[str, Sequence[Piece]]
    shapes: Mapping[str, tuple[int, ...]]

    def find(self, spelled: str) -> Sequence[Piece] | None:
        """The pieces of a module; None where it is none of this component's."""
        for prefixes, modules in ((self.prefixes, self.modules), (self.flat_prefixes, self._flat)):
            for prefix in sorted(prefixes, key=len, reverse=True):
                pieces = modules.get(spelled.removeprefix(prefix)) if spelled.startswith(prefix) else None
                if pieces is not None:
                    return pieces
        return None

    @cached_property
    def _flat(self) -> dict[str, Sequence[Piece]]:
        flat: dict[str, Sequence[Piece]] = {}
        for name, pieces in self.modules.items():
            other = flat.setdefault(name.replace(".", "_"), pieces)
            assert other == pieces, f"{name} is spelt as another module is once dots are underscores"
        return flat


def read_deltas(
    loras: Iterable[tuple[Path, float]], vocabularies: Sequence[Vocabulary]
) -> dict[str, Deltas]:
    """What LoRA files, each with a weight, add to the parameters of each component. Values are not read yet.

    Raises:
        CheckpointError: for a file that is damaged, and for modules that no component has or whose factors do not fit;
            names the file and the first of them.
    """
    terms: dict[str, dict[str, list[Term]]] = {vocabulary.component: {} for vocabulary in vocabularies}
    for path, weight in loras:
        unknown, misshapen = [], []
        for factors in read_lora(path):
            found = next(((v, pieces) for v in vocabularies if (pieces := v.find(factors.module))), None)
            if found is None:
                unknown.append(factors.module)
                continue
            vocabulary, pieces = found
            if problem := _misfit(factors, pieces, vocabulary):
                misshapen.append(problem)
            for name in dict.fromkeys(piece.parameter for piece in pieces):
                of_parameter = tuple(piece for piece in pieces if piece.parameter == name)
                terms[vocabulary.component].setdefault(name, []).append(Term(factors, of_parameter, weight))
        if unknown:
            components = ", ".join(vocabulary.component for vocabulary in vocabularies)
            raise CheckpointError(
                f"{path}: changes {len(unknown)} modules that this model ({components}) does not have: "
                f"{listing(unknown)}"
            )
        if misshapen:
            raise CheckpointError(
                f"{path}: {len(misshapen)} modules have other shapes than the model: {listing(misshapen)}"
            )
    return {
        vocabulary.component: Deltas(terms[vocabulary.component], vocabulary.shapes)
        for vocabulary in vocabularies
    }


def _misfit(factors: Factors, pieces: Sequence[Piece], vocabulary: Vocabulary) -> str | None:
    """What is wrong with the shape of a module's factors, if anything."""
    shape = vocabulary.shapes[pieces[0].parameter]
    expected = (max(piece.end for piece in pieces), *shape[1:])
    if factors.shape == expected:
        return None
    return f"{factors.module} is {list(factors.shape)} for {list(expected)}"
