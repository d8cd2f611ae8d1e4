"""The configuration of a FLUX.1 transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgedit.models.config import known_fields


@dataclass(frozen=True)
class FluxConfig:
    """The fields of diffusers' FluxTransformer2DModel configuration."""

    in_channels: int = 64
    out_channels: int | None = None
    num_layers: int = 19
    num_single_layers: int = 38
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 4096
    pooled_projection_dim: int = 768
    guidance_embeds: bool = False
    axes_dims_rope: tuple[int, ...] = (16, 56, 56)
    patch_size: int = 1

    def __post_init__(self) -> None:
        if sum(self.axes_dims_rope) != self.attention_head_dim or any(
            d % 2 or d < 2 for d in self.axes_dims_rope
        ):
            raise ValueError(
                f"axes_dims_rope {list(self.axes_dims_rope)} must be even and add up to attention_head_dim "
                f"{self.attention_head_dim}"
            )
        if self.patch_size != 1:
            raise ValueError(
                f"patch_size is {self.patch_size}; FLUX patches outside the transformer, so only 1 is legal"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FluxConfig:
        """From the contents of config.json."""
        fields = known_fields(cls, values)
        if "axes_dims_rope" in fields:
            fields["axes_dims_rope"] = tuple(fields["axes_dims_rope"])
        return cls(**fields)

    @property
    def dim(self) -> int:
        return self.num_attention_heads * self.attention_head_dim
