"""How LoRA files spell the modules of each component, as data: what stands before a module's name.

diffusers and PEFT name the component, other scripts write the name of the original network, bare or under the prefix
of its checkpoints, and kohya's scripts spell the dots of a name as underscores.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgedit.weights.lora_targets import Vocabulary
from edgedit.weights.name_map import architecture
from edgedit.weights.pieces import Piece, pieces_of

WEIGHT = ".weight"
# Component: prefixes before names with dots, prefixes before names with underscores.
_TRANSFORMER = (
    ("transformer.", "", "diffusion_model.", "model.diffusion_model.", "base_model.model."),
    ("lora_unet_", "lora_transformer_"),
)
PREFIXES: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "FluxPipeline": {
        "transformer": _TRANSFORMER,
        "text_encoder": (("text_encoder.", "text_encoders.clip_l.transformer."), ("lora_te1_", "lora_te_")),
        "text_encoder_2": (("text_encoder_2.", "text_encoders.t5xxl.transformer."), ("lora_te2_", "lora_te3_")),
    },
    "StableDiffusion3Pipeline": {
        "transformer": _TRANSFORMER,
        "text_encoder": (("text_encoder.", "text_encoders.clip_l.transformer."), ("lora_te1_",)),
        "text_encoder_2": (("text_encoder_2.", "text_encoders.clip_g.transformer."), ("lora_te2_",)),
        "text_encoder_3": (("text_encoder_3.", "text_encoders.t5xxl.transformer."), ("lora_te3_",)),
    },
}  # fmt: skip
ARCHITECTURES = {"FluxPipeline": "flux", "StableDiffusion3Pipeline": "sd3"}  # of the transformers
_OPTIONAL = "text_model."  # published with and without


def vocabulary(family: str, component: str, weights: Mapping[str, tuple[int, ...]]) -> Vocabulary:
    """Of a component of a pipeline.

    Args:
        family: one of PREFIXES.
        weights: shapes of the weights that a LoRA may change, by parameter name.
    """
    prefixes, flat_prefixes = PREFIXES[family][component]
    modules: dict[str, tuple[Piece, ...]] = {}
    for name, shape in weights.items():
        module = name.removesuffix(WEIGHT)
        modules[module] = (Piece(name, 0, shape[0]),)
        if component != "transformer":
            modules[_OPTIONAL + module] = modules[module]
    if component == "transformer":
        for spelling in architecture(ARCHITECTURES[family]).spellings:
            for source, targets in spelling.bind(()).sources(weights).items():
                if source.endswith(WEIGHT):
                    modules.setdefault(source.removesuffix(WEIGHT), pieces_of(targets, weights))
    return Vocabulary(component, prefixes, flat_prefixes, modules, weights)
