"""The layers of the autoencoder on pictures [B, C, H, W], whose rows ranks may share.

`picture` says how a layer reaches what it has not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.models.activations import ACTIVATIONS
from edgedit.models.layers import Conv2d, Linear
from edgedit.models.module import Module, Parameter
from edgedit.sequence.rows import PictureStrategy

if TYPE_CHECKING:
    from edgedit.models.autoencoder_config import AutoencoderKLConfig

EPS = 1e-6


class Conv3x3(Module):
    """[B, in_channels, H, W] -> [B, out_channels, H, W]; beyond its sides a picture is zero."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        self.weight = Parameter((out_channels, in_channels, 3, 3), "conv")
        self.bias = Parameter((out_channels,), "bias")

    def forward(
        self,
        b: GraphBuilder,
        x: Tensor,
        picture: PictureStrategy,
        *,
        activation: str | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        x, outside = picture.with_neighbours(b, x)
        return self.of_rows(b, x, outside, activation=activation, residual=residual)

    def of_rows(
        self,
        b: GraphBuilder,
        x: Tensor,
        outside: tuple[int, int],
        *,
        activation: str | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Of rows between their neighbours, of which `outside` lie above and below the picture."""
        weight, bias = self.weight.on(b), self.bias.on(b)
        return b.conv2d(x, weight, bias, 1, (*outside, 1, 1), activation=activation, residual=residual)


class GroupNorm(Module):
    """Over groups of channels of [B, C, H, W]."""

    def __init__(self, groups: int, channels: int) -> None:
        self.groups = groups
        self.weight = Parameter((channels,), "norm")
        self.bias = Parameter((channels,), "norm")

    def forward(self, b: GraphBuilder, x: Tensor, picture: PictureStrategy) -> Tensor:
        return picture.group_norm(b, x, self.groups, EPS, self.weight.on(b), self.bias.on(b))


class ResnetBlock(Module):
    """x + conv(act(norm(conv(act(norm(x)))))), with a 1x1 convolution on x where the channels change."""

    def __init__(self, config: AutoencoderKLConfig, in_channels: int, out_channels: int) -> None:
        self.activation = ACTIVATIONS[config.act_fn]
        self.norm1 = GroupNorm(config.norm_num_groups, in_channels)
        self.conv1 = Conv3x3(in_channels, out_channels)
        self.norm2 = GroupNorm(config.norm_num_groups, out_channels)
        self.conv2 = Conv3x3(out_channels, out_channels)
        self.conv_shortcut = Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else None

    def forward(self, b: GraphBuilder, x: Tensor, picture: PictureStrategy) -> Tensor:
        hidden = self.conv1(b, b.activate(self.norm1(b, x, picture), self.activation), picture)
        hidden = b.activate(self.norm2(b, hidden, picture), self.activation)
        residual = self.conv_shortcut(b, x) if self.conv_shortcut else x
        return self.conv2(b, hidden, picture, residual=residual)


class SpatialAttention(Module):
    """One head over all positions, with a residual connection."""

    def __init__(self, config: AutoencoderKLConfig, channels: int) -> None:
        self.group_norm = GroupNorm(config.norm_num_groups, channels)
        self.to_q = Linear(channels, channels)
        self.to_k = Linear(channels, channels)
        self.to_v = Linear(channels, channels)
        self.to_out = [Linear(channels, channels)]

    def forward(self, b: GraphBuilder, x: Tensor, picture: PictureStrategy) -> Tensor:
        batch, channels, height, width = x.shape
        # [B, C, H, W] -> tokens [B, H W, C]
        tokens = b.reshape(self.group_norm(b, x, picture), (batch, channels, height * width))
        tokens = b.contiguous(b.permute(tokens, (0, 2, 1)))
        q, k, v = (
            b.reshape(projection(b, tokens, dtype=b.activations), (batch, height * width, 1, channels))
            for projection in (self.to_q, self.to_k, self.to_v)
        )
        out = self.to_out[0](b, picture.attention(b, q, k, v, width))
        return b.add(x, b.reshape(b.contiguous(b.permute(out, (0, 2, 1))), x.shape))


class MidBlock(Module):
    def __init__(self, config: AutoencoderKLConfig, channels: int) -> None:
        self.attentions = [SpatialAttention(config, channels)] if config.mid_block_add_attention else []
        self.resnets = [ResnetBlock(config, channels, channels) for _ in range(2)]

    def forward(self, b: GraphBuilder, x: Tensor, picture: PictureStrategy) -> Tensor:
        x = self.resnets[0](b, x, picture)
        for attention in self.attentions:
            x = attention(b, x, picture)
        return self.resnets[1](b, x, picture)


class Downsample(Module):
    """Half the size; the picture, which is whole, is padded on its right and lower sides only."""

    def __init__(self, channels: int) -> None:
        self.conv = Conv2d(channels, channels, 3, stride=2, padding=(0, 1, 0, 1))

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        return self.conv(b, x)


class Upsample(Module):
    """Twice the size."""

    def __init__(self, channels: int) -> None:
        self.conv = Conv3x3(channels, channels)

    def forward(self, b: GraphBuilder, x: Tensor, picture: PictureStrategy) -> Tensor:
        rows = x.shape[2]
        x, (above, below) = picture.with_neighbours(b, x)  # of the smaller picture, whose rows are smaller too
        if not rows:
            return self.conv.of_rows(b, b.reshape(x, (*x.shape[:2], 0, 2 * x.shape[3])), (1, 1))
        x = b.upsample_nearest(x, 2)
        first = 1 - above
        return self.conv.of_rows(b, b.slice(x, 2, first, x.shape[2] - 1 + below), (above, below))


class DownBlock(Module):
    def __init__(self, config: AutoencoderKLConfig, in_channels: int, out_channels: int, last: bool) -> None:
        layers = config.layers_per_block
        self.resnets = [
            ResnetBlock(config, in_channels if layer == 0 else out_channels, out_channels)
            for layer in range(layers)
        ]
        self.downsamplers = [] if last else [Downsample(out_channels)]

    def forward(self, b: GraphBuilder, x: Tensor, picture: PictureStrategy) -> Tensor:
        for resnet in self.resnets:
            x = resnet(b, x, picture)
        for downsampler in self.downsamplers:
            x = downsampler(b, x)
        return x


class UpBlock(Module):
    def __init__(self, config: AutoencoderKLConfig, in_channels: int, out_channels: int, last: bool) -> None:
        layers = config.layers_per_block + 1
        self.resnets = [
            ResnetBlock(config, in_channels if layer == 0 else out_channels, out_channels)
            for layer in range(layers)
        ]
        self.upsamplers = [] if last else [Upsample(out_channels)]

    def forward(
        self, b: GraphBuilder, x: Tensor, picture: PictureStrategy, *, enlarges: bool = True
    ) -> Tensor:
        for layer in (*self.resnets, *(self.upsamplers if enlarges else ())):
            x = layer(b, x, picture)
        return x
