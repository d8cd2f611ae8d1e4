"""The configuration of a Stable Diffusion 3 or 3.5 transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from edgedit.models.config import known_fields

PATCH = 2


@dataclass(frozen=True)
class SD3Config:
    """The fields of diffusers' SD3Transformer2DModel configuration."""

    sample_size: int = 128
    patch_size: int = PATCH
    in_channels: int = 16
    num_layers: int = 18
    attention_head_dim: int = 64
    num_attention_heads: int = 18
    joint_attention_dim: int = 4096
    caption_projection_dim: int = 1152
    pooled_projection_dim: int = 2048
    out_channels: int | None = 16
    pos_embed_max_size: int = 96
    dual_attention_layers: tuple[int, ...] = ()
    qk_norm: str | None = None

    guidance_embeds: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.patch_size != PATCH:
            raise ValueError(f"patch_size is {self.patch_size}; supported: {PATCH}")
        if self.caption_projection_dim != self.dim:
            raise ValueError(
                f"caption_projection_dim is {self.caption_projection_dim}, but the blocks have "
                f"num_attention_heads x attention_head_dim = {self.dim} channels; the two must be equal"
            )
        if self.qk_norm not in (None, "rms_norm"):
            raise ValueError(f"qk_norm is {self.qk_norm!r}; supported: None, 'rms_norm'")
        if not self.pos_embed_max_size or self.pos_embed_max_size < 1:
            raise ValueError(f"pos_embed_max_size is {self.pos_embed_max_size}; at least 1 is needed")
        beyond = [layer for layer in self.dual_attention_layers if not 0 <= layer < self.num_layers]
        if beyond:
            raise ValueError(f"dual_attention_layers names {beyond}; the model has {self.num_layers} layers")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SD3Config:
        """From the contents of config.json."""
        fields = known_fields(cls, values)
        if "dual_attention_layers" in fields:
            fields["dual_attention_layers"] = tuple(fields["dual_attention_layers"])
        return cls(**fields)

    @property
    def dim(self) -> int:
        return self.num_attention_heads * self.attention_head_dim
