"""Kernel families: who multiplies matrices, which of them a processor can run, and which one ranks agree on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgedit.errors import EdgeditError

# Fastest first. "portable" runs everywhere, at the speed of what a compiler makes of plain loops over vectors; "ggml"
# stands for ggml's own nodes.
ONEDNN = "onednn"
PORTABLE = "portable"
FAMILIES = (ONEDNN, "avx512", "avx2", PORTABLE, "ggml")
CHOICES = ("auto", *FAMILIES)
VARIABLE = "EDGEDIT_KERNELS"  # what auto means
QUANTISED_COMPUTE = ("exact", "int8")


@dataclass(frozen=True)
class Offer:
    """What one rank can do: the families that its processor runs, best first, and the one that it takes for auto.

    The latter is unchecked: where the environment names it, it may be none of them. `onednn` is the version of oneDNN
    and the instructions that it uses, or why there is none.
    """

    usable: tuple[str, ...]
    auto: str
    onednn: str = ""

    @classmethod
    def here(cls, env: Mapping[str, str] | None = None) -> Offer:
        from edgedit import _native

        wanted = (os.environ if env is None else env).get(VARIABLE) or "auto"
        auto = _native.kernels.best() if wanted == "auto" else wanted
        found, description = _native.kernels.onednn()
        return cls((*[ONEDNN] * found, *_native.kernels.families(), "ggml"), auto, description)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def refusal(self, word: str) -> str | None:
        """Why this rank cannot run what a choice means for it, if it cannot."""
        family = self.auto if word == "auto" else word
        if family in self.usable:
            return None
        name = f"{VARIABLE}={family}" if word == "auto" else f"kernels {family!r}"
        reason = "this processor cannot run them" if family in FAMILIES else "no such kernels"
        if family == ONEDNN:
            reason = f"there is no oneDNN to be used: {self.onednn}"
        return f"{name}: {reason}; legal here: {', '.join(self.usable)}"


def chosen(word: str) -> str:
    """The family that a choice means on this machine. Raises ValueError for one that it cannot run."""
    offer = Offer.here()
    if refusal := offer.refusal(word):
        raise ValueError(refusal)
    return offer.auto if word == "auto" else word


def agreed(word: str, offers: Sequence[Offer]) -> str:
    """The family that a choice means for all ranks: for auto the slowest of what they would take alone.

    `offers` are those of all ranks. Packed weights travel between ranks, so that oneDNN, whose layouts differ from one
    version or processor to the next, must be the same everywhere; auto does without it otherwise. Raises EdgeditError
    naming a rank that cannot run what it was told to, or that has another oneDNN.
    """
    for rank, offer in enumerate(offers):
        if refusal := offer.refusal(word):
            raise EdgeditError(f"rank {rank}: {refusal}")
    family = max((offer.auto for offer in offers), key=FAMILIES.index) if word == "auto" else word
    other = next((rank for rank, offer in enumerate(offers) if offer.onednn != offers[0].onednn), None)
    if family != ONEDNN or other is None:
        return family
    if word == "auto":
        return max((offer.usable[1] for offer in offers), key=FAMILIES.index)
    raise EdgeditError(
        f"kernels 'onednn': rank 0 has {offers[0].onednn}, but rank {other} {offers[other].onednn}"
    )


def multiplies_bf16(family: str) -> bool:
    """True for families that multiply bf16 where weights are no f32."""
    from edgedit import _native

    return family != "ggml" and _native.kernels.has_bf16(family)


def activations(family: str, compute_dtype: str) -> str:
    """Type for tensors that only feed products: bf16 where these are multiplied as such, else f32."""
    return "bf16" if compute_dtype != "f32" and multiplies_bf16(family) else "f32"


def check_quantised_compute(word: str) -> str:
    """Return `word`, or raise ValueError listing the legal ones."""
    if word not in QUANTISED_COMPUTE:
        raise ValueError(f"quantised_compute is {word!r}; legal: {', '.join(QUANTISED_COMPUTE)}")
    return word
