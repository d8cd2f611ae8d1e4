"""Networks by the class name in their config.json."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgedit.models.diffusion_transformer import DiffusionTransformer
    from edgedit.models.model import Model

TRANSFORMERS = {
    "FluxTransformer2DModel": ("edgedit.models.flux", "FluxTransformer"),
    "SD3Transformer2DModel": ("edgedit.models.sd3", "SD3Transformer"),
}
NETWORKS = {
    **TRANSFORMERS,
    "AutoencoderKL": ("edgedit.models.autoencoder_kl", "AutoencoderKL"),
    "CLIPTextModel": ("edgedit.models.clip", "CLIPTextModel"),
    "CLIPTextModelWithProjection": ("edgedit.models.clip", "CLIPTextModelWithProjection"),
    "T5EncoderModel": ("edgedit.models.t5", "T5EncoderModel"),
}
_UNNAMED = "FluxTransformer2DModel"  # a config that does not say


def transformer_class(config: dict[str, Any]) -> type[DiffusionTransformer]:
    """The class for a config.json. Raises ValueError for a network that is not supported."""
    name = config.get("_class_name", _UNNAMED)
    if name not in TRANSFORMERS:
        raise ValueError(f"network {name!r} is not supported; supported: {', '.join(TRANSFORMERS)}")
    module, transformer = TRANSFORMERS[name]
    return getattr(importlib.import_module(module), transformer)


def network_class(name: str) -> type[Model]:
    """The class of that name in diffusers or transformers, one of NETWORKS."""
    module, network = NETWORKS[name]
    return getattr(importlib.import_module(module), network)
