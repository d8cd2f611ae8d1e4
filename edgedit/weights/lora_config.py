"""How LoRA may be applied, and its scales from the config that PEFT keeps, in a file or in the metadata of one."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit.errors import CheckpointError

if TYPE_CHECKING:
    from edgedit.weights.safetensors import SafetensorsFile

MODES = ("merge", "apart")
METADATA_KEY = "lora_adapter_metadata"
FILE_NAME = "adapter_config.json"
PEFT_PREFIX = "base_model.model."
MAX_ADAPTERS = 64  # of one file
MAX_ALPHA = 1e6
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.")
_REFUSED = ("use_dora", "lora_bias", "fan_in_fan_out", "megatron_config", "alora_invocation_tokens")


def check_mode(mode: str) -> str:
    """Return `mode`, or raise ValueError listing the legal ones."""
    if mode not in MODES:
        raise ValueError(f"lora_mode is {mode!r}; legal: {', '.join(MODES)}")
    return mode


@dataclass(frozen=True)
class LoraConfig:
    """The fields of PEFT's LoraConfig that decide the scale.

    alpha          None where nothing is known of it: then the scale is 1
    alpha_pattern  alphas of modules whose name ends so
    use_rslora     alpha is divided by the root of the rank [Kalajdzievski 2023]
    """

    alpha: float | None = None
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    use_rslora: bool = False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], path: Path) -> LoraConfig:
        refused = [name for name in _REFUSED if values.get(name)]
        if refused:
            raise CheckpointError(f"{path}: the adapter's config sets {', '.join(refused)}, not supported")
        patterns = values.get("alpha_pattern") or {}
        alphas = {"lora_alpha": values.get("lora_alpha", 8)}
        if not isinstance(patterns, dict):
            raise CheckpointError(f"{path}: alpha_pattern of the adapter's config is no object")
        for name, alpha in (alphas | patterns).items():
            if type(alpha) not in (int, float) or not abs(alpha) <= MAX_ALPHA:
                raise CheckpointError(f"{path}: the adapter's config gives {name!r} the alpha {alpha!r}")
            if not _PLAIN.issuperset(name):
                raise CheckpointError(f"{path}: alpha_pattern {name!r} is no plain module name, not supported")
        return cls(float(alphas["lora_alpha"]), patterns, bool(values.get("use_rslora")))

    def scale(self, module: str, rank: int, path: Path) -> float:
        """Of a module; `path` is for messages. CheckpointError where two patterns disagree."""
        alphas = {
            alpha
            for name, alpha in self.alpha_pattern.items()
            if module == name or module.endswith(f".{name}")
        }
        if len(alphas) > 1:
            raise CheckpointError(f"{path}: alpha_pattern gives {module} several alphas: {sorted(alphas)}")
        alpha = alphas.pop() if alphas else self.alpha
        if alpha is None:
            return 1.0
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def read_configs(file: SafetensorsFile, modules: Iterable[str]) -> dict[str, LoraConfig]:
    """Configs by the prefix of the modules that they are for; empty where the file brings none.

    Warns where names are PEFT's own and the file with its config is missing. Raises CheckpointError for a config that
    is malformed or asks for something else than plain LoRA.
    """
    if METADATA_KEY not in file.metadata:
        if not any(module.startswith(PEFT_PREFIX) for module in modules):
            return {}
        beside = file.path.parent / FILE_NAME
        if beside.is_file():
            return {"": LoraConfig.from_dict(_object(beside.read_bytes(), beside), beside)}
        warnings.warn(f"{file.path}: no {FILE_NAME} is beside it; its scale is taken to be 1", stacklevel=2)
        return {}
    fields = _object(file.metadata[METADATA_KEY], file.path)
    # "transformer.lora_alpha" in a pipeline's file, "lora_alpha" in a model's
    suffix = "lora_alpha"
    prefixes = [name.removesuffix(suffix) for name in fields if name == suffix or name.endswith(f".{suffix}")]
    if len(prefixes) > MAX_ADAPTERS:
        raise CheckpointError(f"{file.path}: has configs of {len(prefixes)} adapters; at most {MAX_ADAPTERS}")
    return {
        prefix: LoraConfig.from_dict(
            {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)},
            file.path,
        )
        for prefix in prefixes
    }


def _object(text: str | bytes, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: malformed config of the adapter: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: the adapter's config is no object")
    return content
