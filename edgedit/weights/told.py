"""Configurations of networks, told from the shapes of their tensors.

What shapes do not tell (the split of a head's channels among axes, groups of a norm) comes from a config.json of the
same network where there is one, and is otherwise as in the published models.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedit.errors import CheckpointError
from edgedit.weights.recognise import Component, component_of
from edgedit.weights.sources import TensorSource, open_source

CONFIG_KEY = "edgedit.config"  # of a GGUF file's metadata: config.json as text
FLUX_AXES = {128: (16, 56, 56)}
HEAD_DIM = 64  # of Stable Diffusion 3 and of CLIP
NORM_GROUPS = 32
_MODEL_TYPES = {"clip": ("clip", "clip_text_model"), "t5": ("t5", "mt5")}  # as transformers' configs have it
LEGACY_EOS = 2  # of CLIP: the end of a text is its highest id


class Shapes:
    """Shapes of a component's tensors, by names that leave out prefixes which not every file has."""

    def __init__(self, component: Component) -> None:
        self.component = component
        source = component.source
        self._shapes = {key.removeprefix("text_model."): source.shape(key) for key in source}

    def __contains__(self, key: str) -> bool:
        return key in self._shapes

    def of(self, key: str, ndim: int) -> tuple[int, ...]:
        """Raises CheckpointError where the tensor is missing or has another number of axes."""
        shape = self._shapes.get(key)
        if shape is None or len(shape) != ndim:
            what = "is missing" if shape is None else f"has shape {list(shape)} instead of {ndim} axes"
            name, path = self.component.architecture.name, self.component.source.path
            raise CheckpointError(f"{path}: {key} {what}; it tells what kind of {name} this is")
        return shape

    def rows(self, key: str) -> int:
        return self.of(key, 2)[0]

    def columns(self, key: str) -> int:
        return self.of(key, 2)[1]

    def heads(self, channels: int, head_dim: int) -> int:
        """How many heads there are. Raises CheckpointError where channels do not make whole ones."""
        if head_dim < 1 or channels < head_dim or channels % head_dim:
            raise CheckpointError(
                f"{self.component.source.path}: {channels} channels do not make heads of {head_dim}; "
                f"the tensors are of no {self.component.architecture.name} that is known"
            )
        return channels // head_dim

    def size(self, key: str) -> int:
        """Elements, 0 for a tensor that is missing."""
        return math.prod(self._shapes.get(key, (0,)))

    def count(self, prefix: str) -> int:
        """Members of a list of modules."""
        pattern = re.compile(re.escape(prefix) + r"\.([0-9]{1,4})\.")  # longer numbers are no layers
        return 1 + max((int(m[1]) for m in map(pattern.match, self._shapes) if m), default=-1)


Config = dict[str, Any]


@dataclass(frozen=True)
class ComponentWeights:
    """A network that can be built: the content of its config.json, and its tensors."""

    config: Config
    source: TensorSource


def open_component(path: str | Path, architecture: str) -> ComponentWeights:
    """The network of an architecture in a file. Raises CheckpointError as `component_of` and `config_of`."""
    component = component_of(open_source(path), architecture)
    return ComponentWeights(config_of(component), component.source)


def config_of(component: Component, hints: Mapping[str, Any] | None = None) -> Config:
    """The content of a config.json for a component.

    Args:
        hints: a config.json for what shapes do not tell, heeded where it contradicts no shape; default: the one that
            the file carries or that stands beside it, if it is for the same network.

    Raises:
        CheckpointError: where a tensor that tells something is missing, or something cannot be told.
    """
    told, assumed = _TELLERS[component.architecture.name](Shapes(component), component.part)
    hints = dict(_own_hints(component) if hints is None else hints)
    inner = hints.get("text_config")
    hints = inner if isinstance(inner, dict) and inner else hints
    agrees = all(hints.get(name, value) in (value, None) for name, value in told.items())
    config = assumed | (hints if agrees else {}) | told
    if config.get("axes_dims_rope", ()) is None:
        raise CheckpointError(
            f"{component.source.path}: the tensors do not tell axes_dims_rope for heads of "
            f"{config['attention_head_dim']} channels; a config.json beside the file can"
        )
    return config | {"_class_name": component.architecture.class_name}


def _own_hints(component: Component) -> Config:
    """What the file says of itself in its metadata or by a config.json beside it, for the same network."""
    text = component.source.metadata.get(CONFIG_KEY)
    path: Path = component.source.path
    beside = (path if path.is_dir() else path.parent) / "config.json"
    try:
        config = json.loads(text if isinstance(text, str) else beside.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(config, dict):
        return {}
    is_same = (
        config.get("_class_name") == component.architecture.class_name
        or config.get("model_type") in _MODEL_TYPES.get(component.architecture.name, ())
    )
    return config if is_same else {}


def _flux(shapes: Shapes, part: str) -> tuple[Config, Config]:
    dim, in_channels = shapes.of("x_embedder.weight", 2)
    (head_dim,) = shapes.of("transformer_blocks.0.attn.norm_q.weight", 1)
    out_channels = shapes.rows("proj_out.weight")
    told = {
        "in_channels": in_channels,
        "num_layers": shapes.count("transformer_blocks"),
        "num_single_layers": shapes.count("single_transformer_blocks"),
        "attention_head_dim": head_dim,
        "num_attention_heads": shapes.heads(dim, head_dim),
        "joint_attention_dim": shapes.columns("context_embedder.weight"),
        "pooled_projection_dim": shapes.columns("time_text_embed.text_embedder.linear_1.weight"),
        "guidance_embeds": "time_text_embed.guidance_embedder.linear_1.weight" in shapes,
    }
    if out_channels != in_channels:
        told["out_channels"] = out_channels
    axes = FLUX_AXES.get(head_dim)
    return told, {"axes_dims_rope": list(axes) if axes else None}


def _sd3(shapes: Shapes, part: str) -> tuple[Config, Config]:
    dim, in_channels, patch, _ = shapes.of("pos_embed.proj.weight", 4)
    norm, layers = "transformer_blocks.0.attn.norm_q.weight", shapes.count("transformer_blocks")
    head_dim = shapes.of(norm, 1)[0] if norm in shapes else HEAD_DIM
    heads = {"attention_head_dim": head_dim, "num_attention_heads": shapes.heads(dim, head_dim)}
    told = {
        "patch_size": patch,
        "in_channels": in_channels,
        "out_channels": shapes.rows("proj_out.weight") // max(1, patch**2),
        "num_layers": layers,
        "joint_attention_dim": shapes.columns("context_embedder.weight"),
        "caption_projection_dim": dim,
        "pooled_projection_dim": shapes.columns("time_text_embed.text_embedder.linear_1.weight"),
        "pos_embed_max_size": math.isqrt(shapes.size("pos_embed.pos_embed") // max(1, dim)),
        "dual_attention_layers": [
            index for index in range(layers) if f"transformer_blocks.{index}.attn2.to_q.weight" in shapes
        ],
    }
    if norm in shapes:
        return told | heads | {"qk_norm": "rms_norm"}, {}
    return told | {"qk_norm": None}, heads


def _autoencoder_kl(shapes: Shapes, part: str) -> tuple[Config, Config]:
    blocks = shapes.count("encoder.down_blocks")
    first = "encoder.down_blocks.{}.resnets.0.conv1.weight"
    told = {
        "in_channels": shapes.of("encoder.conv_in.weight", 4)[1],
        "out_channels": shapes.of("decoder.conv_out.weight", 4)[0],
        "down_block_types": ["DownEncoderBlock2D"] * blocks,
        "up_block_types": ["UpDecoderBlock2D"] * blocks,
        "block_out_channels": [shapes.of(first.format(index), 4)[0] for index in range(blocks)],
        "layers_per_block": shapes.count("encoder.down_blocks.0.resnets"),
        "latent_channels": shapes.of("decoder.conv_in.weight", 4)[1],
        "use_quant_conv": "quant_conv.weight" in shapes,
        "use_post_quant_conv": "post_quant_conv.weight" in shapes,
        "mid_block_add_attention": shapes.count("decoder.mid_block.attentions") > 0,
    }
    return told, {"norm_num_groups": NORM_GROUPS}


def _clip(shapes: Shapes, part: str) -> tuple[Config, Config]:
    vocabulary, width = shapes.of("embeddings.token_embedding.weight", 2)
    projection = "text_projection.weight"
    told = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes.rows("encoder.layers.0.mlp.fc1.weight"),
        "num_hidden_layers": shapes.count("encoder.layers"),
        "max_position_embeddings": shapes.rows("embeddings.position_embedding.weight"),
    }
    assumed = {
        "num_attention_heads": max(1, width // HEAD_DIM),
        "hidden_act": "gelu" if part == "clip_g" else "quick_gelu",
        "eos_token_id": LEGACY_EOS,
        "projection_dim": shapes.rows(projection) if projection in shapes else width,
    }
    return told, assumed


def _t5(shapes: Shapes, part: str) -> tuple[Config, Config]:
    vocabulary, width = shapes.of(
        "shared.weight" if "shared.weight" in shapes else "encoder.embed_tokens.weight", 2
    )
    first = "encoder.block.0.layer"
    buckets, heads = shapes.of(f"{first}.0.SelfAttention.relative_attention_bias.weight", 2)
    told = {
        "vocab_size": vocabulary,
        "d_model": width,
        "d_kv": shapes.rows(f"{first}.0.SelfAttention.q.weight") // max(1, heads),
        "d_ff": shapes.columns(f"{first}.1.DenseReluDense.wo.weight"),
        "num_layers": shapes.count("encoder.block"),
        "num_heads": heads,
        "relative_attention_num_buckets": buckets,
    }
    is_gated = f"{first}.1.DenseReluDense.wi_0.weight" in shapes
    return told, {"feed_forward_proj": "gated-gelu" if is_gated else "relu"}


_TELLERS: dict[str, Callable[[Shapes, str], tuple[Config, Config]]] = {
    "flux": _flux,
    "sd3": _sd3,
    "autoencoder_kl": _autoencoder_kl,
    "clip": _clip,
    "t5": _t5,
}
