"""Decoding a picture in tiles: the decoder's head whole, its tail, which takes most memory, tile by tile.

A tail of 7 norms, as of FLUX.1, runs 8 times on each tile: up to each norm to measure it, and once to the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgedit.graph.builder import GraphBuilder
from edgedit.parallel.arrays import gathered
from edgedit.parallel.split import array_split
from edgedit.sequence.tiles import Cut, NormReached, Statistics, Tile, smallest_tile

if TYPE_CHECKING:
    from edgedit.models.autoencoder_config import AutoencoderKLConfig
    from edgedit.models.autoencoder_kl import AutoencoderKL


def check_tile(config: AutoencoderKLConfig, tile: int) -> None:
    """ValueError for tiles of so many pixels that cannot overlap as they must."""
    smallest = config.tail_factor * smallest_tile(config.tail_reach)
    if tile < smallest:
        raise ValueError(f"tiles of {tile} px are too small for this autoencoder; at least {smallest} px")


def decode_in_tiles(model: AutoencoderKL, latents: np.ndarray, tile: int) -> np.ndarray:
    """As `AutoencoderKL.decode`; the tiles are shared out over the ranks of the `vae` group."""
    check_tile(model.config, tile)
    if model.config.scale_factor * max(latents.shape[2:]) <= tile:
        return model.decode(latents)
    own = model.apply_shared("decode head", model.network.decode_head, latents)
    return _Tiles(model, _all_rows(model, own, latents.shape[2]), tile).decode()


def _all_rows(model: AutoencoderKL, own: np.ndarray, height: int) -> np.ndarray:
    """What ranks made of their rows [B, C, rows, W] of latents of that height, whole.

    It is too large to be gathered in the graph, where the ranks of a host would receive it in shared memory.
    """
    group = model.context.group("vae")
    if group.size == 1:
        return own
    factor = model.config.scale_factor // model.config.tail_factor
    lengths = [factor * rows for rows in array_split(height, group.size)]
    whole = gathered(group, np.moveaxis(own, 2, 0), lengths, "rows of tiles")
    return np.ascontiguousarray(np.moveaxis(whole, 0, 2))


class _Tiles:
    """The tiles of one picture, of which this rank has a run."""

    def __init__(self, model: AutoencoderKL, head: np.ndarray, tile: int) -> None:
        self.model = model
        self.config: AutoencoderKLConfig = model.config
        self.head = head
        self.factor = self.config.tail_factor
        positions = tile // self.factor
        self.rows, self.columns = (
            Cut(length, positions, self.config.tail_reach) for length in head.shape[2:]
        )
        self.places = [
            (row, column)
            for row in range(len(self.rows.starts))
            for column in range(len(self.columns.starts))
        ]
        self.group = model.context.group("vae")
        self.shares = array_split(len(self.places), self.group.size)
        begin = sum(self.shares[: self.group.rank])
        self.own = self.places[begin : begin + self.shares[self.group.rank]]

    def decode(self) -> np.ndarray:
        statistics: list[Statistics] = []
        for _ in range(self.config.tail_norms):
            statistics.append(self._measured(statistics))
        return self._blended(self._painted(statistics))

    def _measured(self, known: list[Statistics]) -> Statistics:
        """Of the norm after those that are known."""
        batch, groups = len(self.head), self.config.norm_num_groups
        parts = np.empty((len(self.own), 2, batch, groups, 1), np.float32)
        for part, place in zip(parts, self.own, strict=True):
            owned = self._owned(place)
            inputs = {"owned": owned[None, None], "share": np.full((1, 1, 1), 1 / owned.sum(), np.float32)}
            part[0], part[1] = self._run(place, known, inputs, ("mean", "variance"))
        self.model.release(self._key(known))
        everyone = gathered(self.group, parts, self.shares, f"norm {len(known)} of tiles")
        weights = [float(self._owned(place).sum()) for place in self.places]
        return Statistics.of([(weight, *part) for weight, part in zip(weights, everyone, strict=True)])

    def _painted(self, statistics: list[Statistics]) -> np.ndarray:
        """Every tile's pixels [tiles, B, 3, H, W]."""
        batch, channels = len(self.head), self.config.out_channels
        height, width = (self.factor * cut.extent for cut in (self.rows, self.columns))
        pixels = np.empty((len(self.own), batch, channels, height, width), np.float32)
        for own, place in zip(pixels, self.own, strict=True):
            (own[...],) = self._run(place, statistics, {}, ("pixels",))
        self.model.release(self._key(statistics))
        return gathered(self.group, pixels, self.shares, "tiles")

    def _blended(self, pixels: np.ndarray) -> np.ndarray:
        height, width = (self.factor * size for size in self.head.shape[2:])
        picture = np.zeros((*pixels.shape[1:3], height, width), np.float32)
        weights = np.zeros((height, width), np.float32)
        for (row, column), tile in zip(self.places, pixels, strict=True):
            weight = np.outer(self.rows.weights(row, self.factor), self.columns.weights(column, self.factor))
            top, left = (
                self.factor * cut.starts[run] for cut, run in ((self.rows, row), (self.columns, column))
            )
            down, across = slice(top, top + tile.shape[2]), slice(left, left + tile.shape[3])
            picture[:, :, down, across] += weight * tile
            weights[down, across] += weight
        return picture / weights

    def _run(
        self,
        place: tuple[int, int],
        known: list[Statistics],
        inputs: dict[str, np.ndarray],
        names: tuple[str, ...],
    ) -> list[np.ndarray]:
        def build(b: GraphBuilder) -> None:
            x = b.input("in", (*self.head.shape[:2], self.rows.extent, self.columns.extent))
            try:
                b.output("pixels", self.model.network.decoder.tail(b, x, Tile(len(known))))
            except NormReached:
                return

        top, left = self.rows.starts[place[0]], self.columns.starts[place[1]]
        tile = self.head[:, :, top : top + self.rows.extent, left : left + self.columns.extent]
        found = self.model.run(self._key(known), build, {"in": tile, **inputs, **Tile.inputs_of(known)})
        return [found[name] for name in names]

    def _key(self, known: list[Statistics]) -> tuple[object, ...]:
        return "tile", len(self.head), self.rows.extent, self.columns.extent, len(known)

    def _owned(self, place: tuple[int, int]) -> np.ndarray:
        """1 for the pixels of a tile that belong to it, 0 for its neighbours': f32 [H, W]."""
        return np.outer(self.rows.owned(place[0], self.factor), self.columns.owned(place[1], self.factor))
