"""The configuration of an autoencoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgedit.models.activations import check_activation
from edgedit.models.config import known_fields


@dataclass(frozen=True)
class AutoencoderKLConfig:
    """The fields of the published config.json that shape the network; scaling and shift belong to the pipeline."""

    in_channels: int = 3
    out_channels: int = 3
    down_block_types: tuple[str, ...] = ("DownEncoderBlock2D",)
    up_block_types: tuple[str, ...] = ("UpDecoderBlock2D",)
    block_out_channels: tuple[int, ...] = (64,)
    layers_per_block: int = 1
    act_fn: str = "silu"
    latent_channels: int = 4
    norm_num_groups: int = 32
    use_quant_conv: bool = True
    use_post_quant_conv: bool = True
    mid_block_add_attention: bool = True

    def __post_init__(self) -> None:
        blocks = len(self.block_out_channels)
        for field, kind in (
            ("down_block_types", "DownEncoderBlock2D"),
            ("up_block_types", "UpDecoderBlock2D"),
        ):
            types = getattr(self, field)
            if set(types) != {kind} or len(types) != blocks:
                raise ValueError(
                    f"{field}={list(types)} is not supported; supported: {blocks} x {kind!r}, one for "
                    f"each of block_out_channels={list(self.block_out_channels)}"
                )
        for channels in self.block_out_channels:
            if channels % self.norm_num_groups:
                raise ValueError(
                    f"block_out_channels={list(self.block_out_channels)} must all be multiples of "
                    f"norm_num_groups={self.norm_num_groups}"
                )
        check_activation("act_fn", self.act_fn)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AutoencoderKLConfig:
        """From the contents of config.json."""
        fields = known_fields(cls, values)
        for name in ("down_block_types", "up_block_types", "block_out_channels"):
            if name in fields:
                fields[name] = tuple(fields[name])
        return cls(**fields)

    @property
    def scale_factor(self) -> int:
        """Pixels per latent position, along each side."""
        return 2 ** (len(self.block_out_channels) - 1)

    @property
    def tail_factor(self) -> int:
        """How often the decoder's tail enlarges what it reads, along each side."""
        return min(2, self.scale_factor)

    @property
    def tail_norms(self) -> int:
        """Norms in the decoder's tail."""
        return 2 * (self.layers_per_block + 1) + 1

    @property
    def tail_reach(self) -> int:
        """Positions of what the decoder's tail reads, to each side, that a pixel depends on but for norms."""
        convolutions = self.tail_norms + self.tail_factor - 1
        return -(-convolutions // self.tail_factor)
