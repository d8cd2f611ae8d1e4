"""The variational autoencoder between pictures and latents [Rombach et al. 2022], as diffusers publishes it.

pixels [B, 3, H, W]   ─ encode ─▶ mean, logvar [B, C, H/f, W/f]
latents [B, C, h, w]  ─ decode ─▶ pixels [B, 3, f h, f w]        with f = 2 ** (number of blocks - 1)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.models.autoencoder_blocks import Conv3x3, DownBlock, GroupNorm, MidBlock, UpBlock
from edgedit.models.autoencoder_config import AutoencoderKLConfig
from edgedit.models.layers import Conv2d
from edgedit.models.model import Model
from edgedit.models.module import Module
from edgedit.models.tiled_decoding import decode_in_tiles
from edgedit.sequence.rows import PictureStrategy, WholePicture, rows_over

LOGVAR_RANGE = (-30.0, 20.0)
OLD_ATTENTION_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


class Encoder(Module):
    """Pixels [B, 3, H, W] -> [B, 2 C, H/f, W/f]."""

    def __init__(self, config: AutoencoderKLConfig) -> None:
        channels = config.block_out_channels
        self.conv_in = Conv3x3(config.in_channels, channels[0])
        self.down_blocks = [
            DownBlock(config, channels[max(i - 1, 0)], channels[i], last=i == len(channels) - 1)
            for i in range(len(channels))
        ]
        self.mid_block = MidBlock(config, channels[-1])
        self.conv_norm_out = GroupNorm(config.norm_num_groups, channels[-1])
        self.conv_out = Conv3x3(channels[-1], 2 * config.latent_channels)

    def forward(self, b: GraphBuilder, x: Tensor, picture: PictureStrategy) -> Tensor:
        x = self.conv_in(b, x, picture)
        for block in self.down_blocks:
            x = block(b, x, picture)
        x = self.mid_block(b, x, picture)
        return self.conv_out(b, b.silu(self.conv_norm_out(b, x, picture)), picture)


class Decoder(Module):
    """Latents [B, C, h, w] -> pixels [B, 3, fh, fw]: a head that ends before the last enlargement, and a tail."""

    def __init__(self, config: AutoencoderKLConfig) -> None:
        channels = config.block_out_channels[::-1]
        self.conv_in = Conv3x3(config.latent_channels, channels[0])
        self.mid_block = MidBlock(config, channels[0])
        self.up_blocks = [
            UpBlock(config, channels[max(i - 1, 0)], channels[i], last=i == len(channels) - 1)
            for i in range(len(channels))
        ]
        self.conv_norm_out = GroupNorm(config.norm_num_groups, channels[-1])
        self.conv_out = Conv3x3(channels[-1], config.out_channels)

    def forward(self, b: GraphBuilder, x: Tensor, picture: PictureStrategy) -> Tensor:
        return self.tail(b, self.head(b, x, picture), picture)

    def head(self, b: GraphBuilder, x: Tensor, picture: PictureStrategy) -> Tensor:
        x = self.mid_block(b, self.conv_in(b, x, picture), picture)
        *before, _ = self.up_blocks
        for block in before:
            x = block(b, x, picture, enlarges=block is not before[-1])
        return x

    def tail(self, b: GraphBuilder, x: Tensor, picture: PictureStrategy) -> Tensor:
        *before, last = self.up_blocks
        for block in before[-1:]:
            for upsampler in block.upsamplers:
                x = upsampler(b, x, picture)
        x = last(b, x, picture)
        return self.conv_out(b, b.silu(self.conv_norm_out(b, x, picture)), picture)


class AutoencoderKLNetwork(Module):
    def __init__(self, config: AutoencoderKLConfig) -> None:
        latent = config.latent_channels
        self.scale_factor = config.scale_factor
        self.tail_factor = config.tail_factor
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.quant_conv = Conv2d(2 * latent, 2 * latent, 1) if config.use_quant_conv else None
        self.post_quant_conv = Conv2d(latent, latent, 1) if config.use_post_quant_conv else None

    def encode(self, b: GraphBuilder, pixels: Tensor) -> Tensor:
        moments = self.encoder(b, pixels, WholePicture())
        return self.quant_conv(b, moments) if self.quant_conv else moments

    def decode(self, b: GraphBuilder, latents: Tensor, picture: PictureStrategy) -> Tensor:
        x = self._decoder_input(b, latents, picture)
        return picture.gather(b, self.decoder(b, x, picture), self.scale_factor)

    def decode_head(self, b: GraphBuilder, latents: Tensor, picture: PictureStrategy) -> Tensor:
        """Own rows of what `decoder.tail` reads."""
        return self.decoder.head(b, self._decoder_input(b, latents, picture), picture)

    def _decoder_input(self, b: GraphBuilder, latents: Tensor, picture: PictureStrategy) -> Tensor:
        x = picture.split(b, latents)
        return self.post_quant_conv(b, x) if self.post_quant_conv else x


class AutoencoderKL(Model):
    """Turns latents into pictures and back. Loaded by `from_pretrained`.

    Ranks of the `vae` group share the rows of what they decode: all of them call `decode` alike and get it whole.
    """

    config_class = AutoencoderKLConfig
    architecture = "autoencoder_kl"
    network: AutoencoderKLNetwork

    @classmethod
    def build_network(cls, config: AutoencoderKLConfig) -> AutoencoderKLNetwork:
        return AutoencoderKLNetwork(config)

    @classmethod
    def parameter_name(cls, key: str) -> str | None:
        """Older files call the attention's projections query, key, value and proj_attn."""
        module, _, kind = key.rpartition(".")
        parent, _, name = module.rpartition(".")
        if parent.endswith("mid_block.attentions.0") and name in OLD_ATTENTION_NAMES:
            return f"{parent}.{OLD_ATTENTION_NAMES[name]}.{kind}"
        return key

    def decode(self, latents: np.ndarray, tile: int | None = None) -> np.ndarray:
        """Latents [B, C, h, w], scaling and shift already undone, to pixels [B, 3, f h, f w], about in [-1, 1].

        tile  side in pixels of tiles in which the last and largest layers are computed, one after another on each rank:
              less memory, more time, the same picture but for rounding

        Raises ValueError for another number of channels or a tile that is too small.
        """
        config: AutoencoderKLConfig = self.config
        _check_picture("latents", latents, config.latent_channels, 1)
        if tile is not None:
            return decode_in_tiles(self, latents, tile)
        return self.apply_shared("decode", self.network.decode, latents)

    def encode(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pixels [B, 3, H, W] in [-1, 1] to mean and log variance of the latents, [B, C, H // f, W // f] each.

        Raises ValueError for another number of channels or sides shorter than f = 2 ** (blocks - 1).
        """
        config: AutoencoderKLConfig = self.config
        _check_picture("pixels", pixels, config.in_channels, config.scale_factor)
        moments = self._apply("encode", self.network.encode, pixels)
        mean, logvar = np.split(moments, 2, axis=1)
        return mean, np.clip(logvar, *LOGVAR_RANGE)

    def apply_shared(
        self, name: str, layers: Callable[[GraphBuilder, Tensor, PictureStrategy], Tensor], values: np.ndarray
    ) -> np.ndarray:
        """Layers on a picture [B, C, H, W] whose rows the ranks of the `vae` group share."""
        group = self.context.group("vae")

        def on_rows(b: GraphBuilder, x: Tensor) -> Tensor:
            return layers(b, x, rows_over(group, x.shape[2]))

        return self._apply(name, on_rows, values, degree=group.size)

    def _apply(
        self,
        name: str,
        layers: Callable[[GraphBuilder, Tensor], Tensor],
        values: np.ndarray,
        degree: int = 1,
    ) -> np.ndarray:
        def build(b: GraphBuilder) -> None:
            b.output("out", layers(b, b.input("in", values.shape)))

        return self.run((name, values.shape), build, {"in": np.asarray(values, np.float32)}, degree)["out"]


def _check_picture(name: str, values: np.ndarray, channels: int, smallest: int) -> None:
    shape = np.shape(values)
    if len(shape) != 4 or shape[0] < 1 or shape[1] != channels or min(shape[2:]) < smallest:
        raise ValueError(
            f"{name} must be [B, {channels}, H, W] with sides of at least {smallest}, got {list(shape)}"
        )
