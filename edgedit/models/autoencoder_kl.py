"""The variational autoencoder between pictures and latents [Rombach et al. 2022], as diffusers publishes it.

pixels [B, 3, H, W]   ─ encode ─▶ mean, logvar [B, C, H/f, W/f]
latents [B, C, h, w]  ─ decode ─▶ pixels [B, 3, f h, f w]        with f = 2 ** (number of blocks - 1)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.models.activations import ACTIVATIONS, check_activation
from edgedit.models.config import known_fields
from edgedit.models.layers import Conv2d, GroupNorm, Linear
from edgedit.models.model import Model
from edgedit.models.module import Module

EPS = 1e-6
LOGVAR_RANGE = (-30.0, 20.0)
OLD_ATTENTION_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


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


class ResnetBlock(Module):
    """x + conv(act(norm(conv(act(norm(x)))))), with a 1x1 convolution on x where the channels change."""

    def __init__(self, config: AutoencoderKLConfig, in_channels: int, out_channels: int) -> None:
        self.activation = ACTIVATIONS[config.act_fn]
        self.norm1 = GroupNorm(config.norm_num_groups, in_channels, EPS)
        self.conv1 = Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm2 = GroupNorm(config.norm_num_groups, out_channels, EPS)
        self.conv2 = Conv2d(out_channels, out_channels, 3, padding=1)
        self.conv_shortcut = Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else None

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        hidden = self.conv1(b, b.activate(self.norm1(b, x), self.activation))
        hidden = b.activate(self.norm2(b, hidden), self.activation)
        return self.conv2(b, hidden, residual=self.conv_shortcut(b, x) if self.conv_shortcut else x)


class SpatialAttention(Module):
    """One head over all positions, with a residual connection."""

    def __init__(self, config: AutoencoderKLConfig, channels: int) -> None:
        self.group_norm = GroupNorm(config.norm_num_groups, channels, EPS)
        self.to_q = Linear(channels, channels)
        self.to_k = Linear(channels, channels)
        self.to_v = Linear(channels, channels)
        self.to_out = [Linear(channels, channels)]

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        # [B, C, H, W] -> tokens [B, H W, C]
        tokens = b.reshape(self.group_norm(b, x), (batch, channels, height * width))
        tokens = b.contiguous(b.permute(tokens, (0, 2, 1)))
        q, k, v = (
            b.reshape(projection(b, tokens, dtype=b.activations), (batch, height * width, 1, channels))
            for projection in (self.to_q, self.to_k, self.to_v)
        )
        out = self.to_out[0](b, b.attention(q, k, v, dtype=b.activations))
        return b.add(x, b.reshape(b.contiguous(b.permute(out, (0, 2, 1))), x.shape))


class MidBlock(Module):
    def __init__(self, config: AutoencoderKLConfig, channels: int) -> None:
        self.attentions = [SpatialAttention(config, channels)] if config.mid_block_add_attention else []
        self.resnets = [ResnetBlock(config, channels, channels) for _ in range(2)]

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        x = self.resnets[0](b, x)
        for attention in self.attentions:
            x = attention(b, x)
        return self.resnets[1](b, x)


class Downsample(Module):
    """Half the size; the picture is padded on its right and lower sides only."""

    def __init__(self, channels: int) -> None:
        self.conv = Conv2d(channels, channels, 3, stride=2, padding=(0, 1, 0, 1))

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        return self.conv(b, x)


class Upsample(Module):
    """Twice the size."""

    def __init__(self, channels: int) -> None:
        self.conv = Conv2d(channels, channels, 3, padding=1)

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        return self.conv(b, b.upsample_nearest(x, 2))


class DownBlock(Module):
    def __init__(self, config: AutoencoderKLConfig, in_channels: int, out_channels: int, last: bool) -> None:
        layers = config.layers_per_block
        self.resnets = [
            ResnetBlock(config, in_channels if layer == 0 else out_channels, out_channels)
            for layer in range(layers)
        ]
        self.downsamplers = [] if last else [Downsample(out_channels)]

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        for layer in (*self.resnets, *self.downsamplers):
            x = layer(b, x)
        return x


class UpBlock(Module):
    def __init__(self, config: AutoencoderKLConfig, in_channels: int, out_channels: int, last: bool) -> None:
        layers = config.layers_per_block + 1
        self.resnets = [
            ResnetBlock(config, in_channels if layer == 0 else out_channels, out_channels)
            for layer in range(layers)
        ]
        self.upsamplers = [] if last else [Upsample(out_channels)]

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        for layer in (*self.resnets, *self.upsamplers):
            x = layer(b, x)
        return x


class Encoder(Module):
    """Pixels [B, 3, H, W] -> [B, 2 C, H/f, W/f]."""

    def __init__(self, config: AutoencoderKLConfig) -> None:
        channels = config.block_out_channels
        self.conv_in = Conv2d(config.in_channels, channels[0], 3, padding=1)
        self.down_blocks = [
            DownBlock(config, channels[max(i - 1, 0)], channels[i], last=i == len(channels) - 1)
            for i in range(len(channels))
        ]
        self.mid_block = MidBlock(config, channels[-1])
        self.conv_norm_out = GroupNorm(config.norm_num_groups, channels[-1], EPS)
        self.conv_out = Conv2d(channels[-1], 2 * config.latent_channels, 3, padding=1)

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        x = self.conv_in(b, x)
        for block in self.down_blocks:
            x = block(b, x)
        x = self.mid_block(b, x)
        return self.conv_out(b, b.silu(self.conv_norm_out(b, x)))


class Decoder(Module):
    """Latents [B, C, h, w] -> pixels [B, 3, fh, fw]."""

    def __init__(self, config: AutoencoderKLConfig) -> None:
        channels = config.block_out_channels[::-1]
        self.conv_in = Conv2d(config.latent_channels, channels[0], 3, padding=1)
        self.mid_block = MidBlock(config, channels[0])
        self.up_blocks = [
            UpBlock(config, channels[max(i - 1, 0)], channels[i], last=i == len(channels) - 1)
            for i in range(len(channels))
        ]
        self.conv_norm_out = GroupNorm(config.norm_num_groups, channels[-1], EPS)
        self.conv_out = Conv2d(channels[-1], config.out_channels, 3, padding=1)

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        x = self.mid_block(b, self.conv_in(b, x))
        for block in self.up_blocks:
            x = block(b, x)
        return self.conv_out(b, b.silu(self.conv_norm_out(b, x)))


class AutoencoderKLNetwork(Module):
    def __init__(self, config: AutoencoderKLConfig) -> None:
        latent = config.latent_channels
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.quant_conv = Conv2d(2 * latent, 2 * latent, 1) if config.use_quant_conv else None
        self.post_quant_conv = Conv2d(latent, latent, 1) if config.use_post_quant_conv else None

    def encode(self, b: GraphBuilder, pixels: Tensor) -> Tensor:
        moments = self.encoder(b, pixels)
        return self.quant_conv(b, moments) if self.quant_conv else moments

    def decode(self, b: GraphBuilder, latents: Tensor) -> Tensor:
        return self.decoder(b, self.post_quant_conv(b, latents) if self.post_quant_conv else latents)


class AutoencoderKL(Model):
    """Turns latents into pictures and back. Loaded by `from_pretrained`."""

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

    def decode(self, latents: np.ndarray) -> np.ndarray:
        """Latents [B, C, h, w], scaling and shift already undone, to pixels [B, 3, f h, f w], about in [-1, 1].

        Raises ValueError for another number of channels.
        """
        config: AutoencoderKLConfig = self.config
        _check_picture("latents", latents, config.latent_channels, 1)
        return self._apply("decode", self.network.decode, latents)

    def encode(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pixels [B, 3, H, W] in [-1, 1] to mean and log variance of the latents, [B, C, H // f, W // f] each.

        Raises ValueError for another number of channels or sides shorter than f = 2 ** (blocks - 1).
        """
        config: AutoencoderKLConfig = self.config
        _check_picture("pixels", pixels, config.in_channels, config.scale_factor)
        moments = self._apply("encode", self.network.encode, pixels)
        mean, logvar = np.split(moments, 2, axis=1)
        return mean, np.clip(logvar, *LOGVAR_RANGE)

    def _apply(
        self, name: str, layers: Callable[[GraphBuilder, Tensor], Tensor], values: np.ndarray
    ) -> np.ndarray:
        def build(b: GraphBuilder) -> None:
            b.output("out", layers(b, b.input("in", values.shape)))

        return self.run((name, values.shape), build, {"in": np.asarray(values, np.float32)})["out"]


def _check_picture(name: str, values: np.ndarray, channels: int, smallest: int) -> None:
    shape = np.shape(values)
    if len(shape) != 4 or shape[0] < 1 or shape[1] != channels or min(shape[2:]) < smallest:
        raise ValueError(
            f"{name} must be [B, {channels}, H, W] with sides of at least {smallest}, got {list(shape)}"
        )
