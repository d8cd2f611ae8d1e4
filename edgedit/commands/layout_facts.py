"""What reports say of the layout that something ran on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgedit.config import ParallelConfig


def layout_facts(config: ParallelConfig) -> dict[str, Any]:
    """Degrees, and the words for how ranks share and talk."""
    return {
        "world_size": config.world_size,
        "axes": config.axes,
        "backend": config.backend,
        "comm": config.comm,
        "ops": config.ops,
        "kernels": config.kernels,
        "vae_degree": config.vae_degree,
        "text_encoder_degree": config.text_encoder_degree,
        "text_encoders": config.text_encoders,
        "weight_residency": config.weight_residency,
    }


def transformer_only_notes(config: ParallelConfig, what: str) -> list[str]:
    """Of a command that does `what` to the transformer alone: the options of other networks that it was given."""
    given = {
        "--vae-ranks": config.vae_degree > 1,
        "--text-encoder-ranks": config.text_encoder_degree > 1,
        "--text-encoders": config.text_encoders != "replicated",
    }
    flags = [flag for flag, is_given in given.items() if is_given]
    return [f"no effect here, where only the transformer is {what}: {', '.join(flags)}"] if flags else []
