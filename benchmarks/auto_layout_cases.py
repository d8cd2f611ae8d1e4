"""The cases of auto_layout.py: transformers of two families, their tokens, and the ranks that share a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgedit.models.diffusion_transformer import DiffusionTransformer
from edgedit.models.flux import FluxConfig, FluxTransformer
from edgedit.models.random_flux import request_of as flux_request
from edgedit.models.random_sd3 import request_of as sd3_request
from edgedit.models.sd3 import SD3Config, SD3Transformer
from edgedit.tuning.search import Work


@dataclass(frozen=True)
class Case:
    """One step of a random transformer: `side` x `side` image tokens for each of `batch` pictures."""

    name: str
    network: type[DiffusionTransformer]
    config: Any
    request_of: Callable[..., dict[str, Any]]
    ranks: int
    side: int
    text_tokens: int
    batch: int = 1
    branches: int = 1
    dtype: str = "f32"

    @property
    def work(self) -> Work:
        return Work(
            self.network,
            self.config,
            self.batch,
            self.side**2,
            self.side**2,
            self.text_tokens,
            self.branches,
            self.dtype,
            {},
        )

    def request(self) -> dict[str, Any]:
        """Random arguments of one forward pass of the whole batch."""
        return self.request_of(self.config, self.side, self.side, self.text_tokens, self.batch)


def _flux(name: str, heads: int, *, double: int = 1, single: int = 2, **rest: Any) -> Case:
    config = FluxConfig(
        num_layers=double,
        num_single_layers=single,
        num_attention_heads=heads,
        joint_attention_dim=512,
        pooled_projection_dim=256,
    )
    return Case(name, FluxTransformer, config, flux_request, **rest)


def _sd3(name: str, heads: int, *, layers: int = 4, dual: int = 0, **rest: Any) -> Case:
    config = SD3Config(
        num_layers=layers,
        num_attention_heads=heads,
        joint_attention_dim=512,
        caption_projection_dim=64 * heads,
        pooled_projection_dim=256,
        dual_attention_layers=tuple(range(dual)),
        qk_norm="rms_norm",
    )
    return Case(name, SD3Transformer, config, sd3_request, **rest)


CASES = (
    _flux("flux, few tokens", 8, ranks=2, side=8, text_tokens=16),
    _flux("flux", 8, ranks=2, side=24, text_tokens=128),
    _flux("flux, many tokens, odd heads", 3, ranks=2, side=48, text_tokens=128),
    _flux("flux, two branches", 8, ranks=2, side=24, text_tokens=128, branches=2),
    _flux("flux, three pictures", 8, ranks=2, side=16, text_tokens=64, batch=3),
    _flux("flux, q8_0", 8, ranks=2, side=16, text_tokens=128, dtype="q8_0"),
    _flux("flux, three ranks", 6, ranks=3, side=24, text_tokens=64),
    _sd3("sd3", 16, ranks=2, side=24, text_tokens=77),
    _sd3("sd3, dual attention, two branches", 12, dual=2, ranks=2, side=20, text_tokens=154, branches=2),
    _sd3("sd3, four ranks, two branches", 16, ranks=4, side=24, text_tokens=77, branches=2),
)
# To try the script.
QUICK = (
    _flux("flux, tiny", 2, single=1, ranks=2, side=4, text_tokens=8, branches=2),
    _sd3("sd3, tiny", 2, layers=2, ranks=2, side=4, text_tokens=8),
)


def case_of(name: str) -> Case:
    return next(case for case in (*CASES, *QUICK) if case.name == name)
