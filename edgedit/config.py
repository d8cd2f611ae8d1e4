"""What the user asks for in parallelism, checked before anything expensive happens."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any

from edgedit import kernels, launcher
from edgedit.degrees import AXES, degree_choices, fewer_ulysses, flags

BACKENDS = ("auto", "none", "local", "mpi", "shm", "nccl", "cuda-ipc")
COMMS = ("auto", "graph-cut", "in-graph")
OPS = ("auto", "fused", "generic")
WIRE_DTYPES = ("auto", "f32", "f16", "bf16", "q8_0")
WIRE_BLOCKS = {"q8_0": 32}  # of these the values that stand together, with one scale
TEXT_ENCODERS = ("replicated", "first")
WEIGHT_RESIDENCIES = ("whole", "sharded")
# The words of the design that this version cannot do yet, and what it can.
_BUILT = {"backend": ("none", "local", "mpi", "shm"), "comm": ("graph-cut", "in-graph")}

# These move memory of CUDA devices, by an extension that is built apart: make cuda.
DEVICE_BACKENDS = ("nccl", "cuda-ipc")
_CUDA_EXTENSION = "edgedit._cuda"

# What differs between the ranks of one launch; everything else has to agree.
_OWN_FIELDS = ("rank", "local_rank", "local_world_size", "device")


@dataclass(frozen=True)
class ParallelConfig:
    """Degrees of every axis, how ranks talk, and which rank this is.

    world size = cfg x dp x (ring or kv_gather) x ulysses x tp. The words `auto` of `comm` and `ops` are replaced by
    what they stand for on construction; those of `kernels` and, for several ranks, of `backend` when the ranks meet,
    that is, in the config of a `ParallelContext`; what that of `wire_dtype` stands for also depends on the type of a
    model's weights. Raises `ValueError` naming the values and what is legal.
    """

    backend: str = "auto"
    cfg_degree: int = 1
    dp_degree: int = 1
    ring_degree: int = 1
    ulysses_degree: int = 1
    kv_gather_degree: int = 1
    tp_degree: int = 1
    vae_degree: int = 1  # overlay group: part of the same world, no factor of it
    text_encoder_degree: int = 1  # overlay group
    weight_residency: str = "whole"  # sharded: ranks keep shares, and gather each block ahead of use
    text_encoders: str = "replicated"  # first: only the first ranks encode, and send what they made
    wire_dtype: str = "auto"  # auto never rounds more than one rank alone would: see wire_dtype_for
    comm: str = "auto"
    ops: str = "auto"
    kernels: str = "auto"  # ops generic and backends of devices mean ggml's own
    timeout_s: float = 60.0  # silence of a peer, not slowness
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    device: int = 0

    def __post_init__(self) -> None:
        self._check_integers()
        for field, legal in (
            ("backend", BACKENDS),
            ("comm", COMMS),
            ("ops", OPS),
            ("kernels", kernels.CHOICES),
            ("wire_dtype", WIRE_DTYPES),
            ("text_encoders", TEXT_ENCODERS),
            ("weight_residency", WEIGHT_RESIDENCIES),
        ):
            _check_word(field, getattr(self, field), legal)
        if not (isinstance(self.timeout_s, (int, float)) and 0 < self.timeout_s < math.inf):
            raise ValueError(f"timeout_s is {self.timeout_s!r}; legal: a number of seconds above 0")
        self._check_degrees()
        if self.world_size == 1:
            self._resolve("backend", "none")
        self._resolve("comm", "graph-cut" if self.backend in ("none", "local") else "in-graph")
        self._resolve("ops", "fused")
        self._resolve_kernels()
        if self.wire_dtype == "q8_0" and self.backend in DEVICE_BACKENDS:
            raise ValueError(f"wire_dtype q8_0 is packed on the host, but backend {self.backend} computes on a device")
        if self.backend == "local" and self.comm == "in-graph":
            raise ValueError(
                "comm in-graph runs one rank a process, but backend local runs threads; legal: graph-cut"
            )
        if self.weight_residency == "sharded" and self.backend in DEVICE_BACKENDS:
            raise ValueError(
                f"weight_residency is 'sharded', but backend {self.backend} computes on a device; legal with it: whole"
            )
        if self.backend == "none" and self.world_size > 1:
            raise ValueError(
                f"backend none serves one rank, but the launch has {self.world_size}; legal: auto, mpi, shm"
            )

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, **options: Any) -> ParallelConfig:
        """A config for the rank that the launcher made of this process (`env`: `os.environ` unless given).

        `options` are the fields of the class; None means the default. Raises `ValueError` also for a launcher that
        starts several processes without MPI.
        """
        env = os.environ if env is None else env
        launch = launcher.detect(env)
        if launch.world_size > 1 and not launch.starts_mpi:
            raise ValueError(
                f"{launch.name} started {launch.world_size} processes without MPI, so they cannot reach each other; "
                f"launch with: mpirun -n {launch.world_size} edgedit ..."
            )
        place: dict[str, Any] = {
            "rank": launch.rank,
            "world_size": launch.world_size,
            "local_rank": launch.local_rank,
            "local_world_size": launch.local_world_size,
            "device": launcher.device_index(launch.local_rank, env),
        }
        return cls(**{**place, **{name: value for name, value in options.items() if value is not None}})

    @classmethod
    def for_plan(cls, **options: Any) -> ParallelConfig:
        """A config whose world is as large as its degrees need: to look at a layout without launching it."""
        given = {name: value for name, value in options.items() if value is not None}
        degrees = [given.get(f"{axis}_degree", 1) for axis in AXES]
        world_size = math.prod(degree for degree in degrees if isinstance(degree, int) and degree > 0)
        return cls(**{"world_size": world_size, "local_world_size": world_size, **given})

    @property
    def axes(self) -> dict[str, int]:
        """Degree of every axis, fastest first: tp, ulysses, ring, kv_gather, cfg, dp."""
        return {axis: getattr(self, f"{axis}_degree") for axis in AXES}

    @property
    def overlays(self) -> dict[str, int]:
        """Ranks of each overlay group, the first ones of the world, which share one part of the work besides steps."""
        return {"vae": self.vae_degree, "text_encoder": self.text_encoder_degree}

    @property
    def step_degree(self) -> int:
        """Ranks that share the work of one forward pass."""
        return self.tp_degree * self.ulysses_degree * self.ring_degree * self.kv_gather_degree

    @property
    def graph_degree(self) -> int:
        """Ranks whose graphs exchange with each other: in a pass, and for the weights of the next block."""
        return math.lcm(self.step_degree, self.tp_degree * self.weight_degree)

    @property
    def weight_degree(self) -> int:
        """Ranks that keep the weights of one place on the tp axis between them."""
        return self.world_size // self.tp_degree if self.weight_residency == "sharded" else 1

    @property
    def sends_text(self) -> bool:
        """Whether only some ranks have text encoders, and send what they make of prompts to all."""
        return self.world_size > 1 and (self.text_encoders == "first" or self.text_encoder_degree > 1)

    @property
    def encodes_text(self) -> bool:
        """Whether this rank has text encoders."""
        return not self.sends_text or self.rank < self.text_encoder_degree

    def wire_dtype_for(self, compute_dtype: str) -> str:
        """The type on the wire for a model with weights of that type, of q, k, v and of what attention gives.

        `auto` is what one rank alone rounds all four to: f32, which rounds nothing, unless the kernels multiply bf16
        and the weights are no f32; then bf16. Raises ValueError where kernels are named that do not run here.
        """
        if self.wire_dtype != "auto":
            return self.wire_dtype
        return kernels.activations(kernels.chosen(self.kernels), compute_dtype)

    def shared_lines(self) -> list[str]:
        """One line per setting that all ranks of a launch must share."""
        return [f"{f.name} = {getattr(self, f.name)}" for f in fields(self) if f.name not in _OWN_FIELDS]

    def _check_integers(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("_degree", "world_size")):
                lowest = 1
            elif field.name in ("rank", "local_rank", "device"):
                lowest = 0
            else:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
                raise ValueError(f"{field.name} is {value!r}; legal: an integer of at least {lowest}")
        for rank, size in (("rank", "world_size"), ("local_rank", "local_world_size")):
            if getattr(self, rank) >= getattr(self, size):
                raise ValueError(f"{rank} {getattr(self, rank)} is none of {size} {getattr(self, size)}")

    def _check_degrees(self) -> None:
        if self.ring_degree > 1 and self.kv_gather_degree > 1:
            raise ValueError(
                f"ring_degree {self.ring_degree} and kv_gather_degree {self.kv_gather_degree}: the two are "
                f"alternatives for one slot; set one of them to 1, for instance {self._one_outer_axis()}"
            )
        product = math.prod(self.axes.values())
        if product != self.world_size:
            if product == 1:
                raise ValueError(
                    f"{self.world_size} ranks were launched but no degrees are given, so they would all do the same; "
                    f"choose: {degree_choices(self.world_size)}"
                )
            shown = " x ".join(
                f"{axis} {degree}" for axis, degree in reversed(self.axes.items()) if degree > 1
            )
            raise ValueError(
                f"{shown} = {product} ranks, but the world has {self.world_size}; launch with mpirun -n {product} "
                f"edgedit ... or choose: {degree_choices(self.world_size)}"
            )
        for field in ("vae_degree", "text_encoder_degree"):
            if getattr(self, field) > self.world_size:
                raise ValueError(
                    f"{field} is {getattr(self, field)}, but the world has {self.world_size}; "
                    f"legal: at most {self.world_size}"
                )

    def _one_outer_axis(self) -> str:
        """Flags for as many ranks with one of ring and kv_gather, either of them."""
        both = self.ring_degree * self.kv_gather_degree
        rings, gathers = {"ring": both, "kv_gather": 1}, {"ring": 1, "kv_gather": both}
        return " or ".join(flags({**self.axes, **degrees}) for degrees in (rings, gathers))

    def _resolve_kernels(self) -> None:
        """Our kernels compute on the CPU, in fused nodes."""
        if self.backend in DEVICE_BACKENDS:
            reason = f"backend {self.backend} computes on a device"
        elif self.ops == "generic":
            reason = "ops generic builds stock nodes only"
        else:
            return
        self._resolve("kernels", "ggml")
        if self.kernels != "ggml":
            raise ValueError(f"kernels is {self.kernels!r}, but {reason}; legal with it: auto, ggml")

    def _resolve(self, field: str, auto: str) -> None:
        if getattr(self, field) == "auto":
            object.__setattr__(self, field, auto)


def _check_word(field: str, value: str, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise ValueError(f"{field} is {value!r}; legal: {', '.join(legal)}")
    built = _BUILT.get(field)
    if field == "backend" and value in DEVICE_BACKENDS:
        if find_spec(_CUDA_EXTENSION) is None:
            raise ValueError(
                f"backend {value!r} needs the extension {_CUDA_EXTENSION}, which is not built here: make cuda; "
                f"legal now: auto, {', '.join(_BUILT['backend'])}"
            )
        return
    if built and value != "auto" and value not in built:
        raise ValueError(
            f"{field} {value!r} is not built in this version; legal now: auto, {', '.join(built)}"
        )


def check_supported(config: ParallelConfig, supported_axes: Collection[str], model_name: str) -> None:
    """Refuse, by name, a degree above 1 on an axis that a model does not use yet. Raises `ValueError`."""
    degrees = {**config.axes, "vae": config.vae_degree, "text_encoder": config.text_encoder_degree}
    for axis, degree in degrees.items():
        if degree > 1 and axis not in supported_axes:
            raise ValueError(
                f"{axis}_degree {degree} is not supported yet by this model ({model_name}); "
                f"supported axes: {', '.join(supported_axes) or 'none'}"
            )


def legal_ulysses_degrees(num_heads: int, config: ParallelConfig) -> range:
    """Ulysses degrees that leave every rank a head of the `num_heads / tp` it can share; shares may be uneven."""
    return range(1, max(1, num_heads // config.tp_degree) + 1)


def check_heads(num_heads: int, config: ParallelConfig, model_name: str) -> None:
    """Refuse more ranks than heads, tensor parallel ones first, then Ulysses ones of the heads that each of those has.

    Raises `ValueError` with legal degrees and alternatives.
    """
    if config.tp_degree > num_heads:
        rest = config.world_size // config.tp_degree
        raise ValueError(
            f"tp_degree {config.tp_degree} is more than the {num_heads} heads of {model_name}; legal degrees: 1 to "
            f"{num_heads} (uneven shares are fine); alternatives: --tp {num_heads} on {num_heads * rest} ranks"
        )
    legal = legal_ulysses_degrees(num_heads, config)
    if config.ulysses_degree in legal:
        return
    raise ValueError(
        f"ulysses_degree {config.ulysses_degree} is more than the {legal[-1]} heads that {model_name} can share; legal "
        f"degrees: 1 to {legal[-1]} (uneven shares are fine); alternatives: "
        f"{', '.join(fewer_ulysses(config.axes, legal[-1]))}"
    )


def check_head_dim(config: ParallelConfig, head_dim: int, model_name: str) -> None:
    """ValueError for heads that blocks would not fill."""
    wire = config.wire_dtype
    shares_tokens = max(config.ulysses_degree, config.ring_degree, config.kv_gather_degree) > 1
    if shares_tokens and wire in WIRE_BLOCKS and head_dim % WIRE_BLOCKS[wire]:
        raise ValueError(
            f"wire_dtype is {wire}, whose blocks of {WIRE_BLOCKS[wire]} values do not fill the {head_dim} "
            f"channels of a head of {model_name}; legal with it: auto, f32, f16, bf16"
        )
