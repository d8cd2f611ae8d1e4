"""Noise levels of flow-matching samplers, with the meaning that diffusers gives ``scheduler_config.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

_CLASS = "FlowMatchEulerDiscreteScheduler"
_KARRAS_RHO = 7.0
_LARGEST = 1_000_000  # of any number in a config


@dataclass(frozen=True)
class FlowMatchSchedule:
    """Sigmas from 1 (pure noise) towards 0, as ``FlowMatchEulerDiscreteScheduler`` of diffusers gives them.

    Fields are the keys of ``scheduler_config.json``. ``shift`` moves the levels by a constant;
    ``use_dynamic_shifting`` moves them by ``mu``, which grows linearly with the number of image tokens.
    """

    num_train_timesteps: int = 1000
    shift: float = 1.0
    use_dynamic_shifting: bool = False
    base_shift: float = 0.5
    max_shift: float = 1.15
    base_image_seq_len: int = 256
    max_image_seq_len: int = 4096
    time_shift_type: str = "exponential"
    shift_terminal: float | None = None
    invert_sigmas: bool = False
    use_karras_sigmas: bool = False
    use_exponential_sigmas: bool = False

    def __post_init__(self) -> None:
        if self.time_shift_type not in ("exponential", "linear"):
            raise ValueError(f"time_shift_type is {self.time_shift_type!r}; legal: 'exponential', 'linear'")
        if self.use_karras_sigmas and self.use_exponential_sigmas:
            raise ValueError("only one of use_karras_sigmas and use_exponential_sigmas can be true")
        if not self.shift > 0:
            raise ValueError(f"shift is {self.shift}; it must be above 0")
        if self.shift_terminal is not None and not 0 <= self.shift_terminal < 1:
            raise ValueError(f"shift_terminal is {self.shift_terminal}; it must be at least 0 and below 1")
        if self.base_image_seq_len >= self.max_image_seq_len:
            raise ValueError(
                f"base_image_seq_len is {self.base_image_seq_len}; it must be below max_image_seq_len "
                f"{self.max_image_seq_len}"
            )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FlowMatchSchedule:
        """From the parsed ``scheduler_config.json``; ValueError names what is not implemented."""
        name = config.get("_class_name", _CLASS)
        if name != _CLASS:
            raise ValueError(f"scheduler {name!r} is not supported; supported is {_CLASS!r}")
        known = {field.name for field in fields(cls)}
        for key, value in config.items():
            if key not in known and not key.startswith("_") and value:
                raise ValueError(f"the scheduler's config asks for {key}={value!r}, which is not supported")
        # null stands for the default in published configs
        values = {key: value for key, value in config.items() if key in known and value is not None}
        for key, value in values.items():
            _check_value(key, value, getattr(cls, key))
        return cls(**values)

    @property
    def lowest(self) -> float:
        """The lowest level of training: that of the first timestep, moved by a static shift."""
        level = np.float32(1 / self.num_train_timesteps)
        if self.use_dynamic_shifting:
            return float(level)
        shift = np.float32(self.shift)
        return float(shift * level / (1 + (shift - 1) * level))

    def mu(self, image_seq_len: int) -> float:
        """Shift for ``image_seq_len`` image tokens: the line through (base_image_seq_len, base_shift) and
        (max_image_seq_len, max_shift)."""
        slope = (self.max_shift - self.base_shift) / (self.max_image_seq_len - self.base_image_seq_len)
        return image_seq_len * slope + (self.base_shift - slope * self.base_image_seq_len)

    def sigmas(self, num_steps: int, image_seq_len: int, *, to_lowest: bool = False) -> np.ndarray:
        """``num_steps + 1`` float32 noise levels; step i goes from sigmas[i] to sigmas[i + 1].

        Before any shift the steps begin at even distances from 1 down to ``1 / num_steps``, as FLUX pipelines ask
        for; with ``to_lowest`` down to ``lowest``, the scheduler's own way.

        ValueError for ``num_steps < 1``, and for a config that gives levels which no sampler can use.
        """
        if num_steps < 1:
            raise ValueError(f"num_inference_steps is {num_steps}; at least 1 is needed")
        if to_lowest:
            levels = np.linspace(1.0, self.lowest, num_steps)
        else:
            levels = np.linspace(1.0, 1.0 / num_steps, num_steps).astype(np.float32)
        if self.shift_terminal and num_steps == 1:
            raise ValueError("num_inference_steps is 1; the scheduler's shift_terminal needs at least 2")
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            levels = self._shifted(levels, image_seq_len)
            if self.shift_terminal:
                levels = 1.0 - (1.0 - levels) / ((1.0 - levels[-1]) / (1.0 - self.shift_terminal))
        if not np.isfinite(levels).all() or not (levels > 0).all():
            raise ValueError(f"{self} gives noise levels that are not above 0 and finite: {levels.tolist()}")
        if self.use_karras_sigmas or self.use_exponential_sigmas:
            levels = self._respaced(levels)
        levels = levels.astype(np.float32)
        if self.invert_sigmas:
            return np.append(np.float32(1.0) - levels, np.float32(1.0))
        return np.append(levels, np.float32(0.0))

    def timesteps(self, sigmas: np.ndarray) -> np.ndarray:
        """Timesteps (``num_train_timesteps * sigma``) of the steps that start at ``sigmas[:-1]``."""
        return sigmas[:-1] * np.float32(self.num_train_timesteps)

    def _shifted(self, levels: np.ndarray, image_seq_len: int) -> np.ndarray:
        if not self.use_dynamic_shifting:
            return self.shift * levels / (1 + (self.shift - 1) * levels)
        mu = self.mu(image_seq_len)
        factor = float(np.exp(mu)) if self.time_shift_type == "exponential" else mu
        return factor / (factor + (1 / levels - 1))

    def _respaced(self, levels: np.ndarray) -> np.ndarray:
        """The same end points with Karras' (rho = 7; arXiv 2206.00364, eq. 5) or exponential spacing."""
        low, high = float(levels[-1]), float(levels[0])
        ramp = np.linspace(0.0, 1.0, len(levels))
        if self.use_karras_sigmas:
            inverse_low, inverse_high = low ** (1 / _KARRAS_RHO), high ** (1 / _KARRAS_RHO)
            return (inverse_high + ramp * (inverse_low - inverse_high)) ** _KARRAS_RHO
        return np.exp(math.log(high) + ramp * (math.log(low) - math.log(high)))


def _check_value(name: str, value: Any, default: Any) -> None:
    """ValueError for a value of another kind than its default, or beyond what any sampler uses."""
    kind = float if default is None else type(default)
    if kind in (bool, str):
        if not isinstance(value, kind):
            raise ValueError(f"{name} is {value!r}; it must be of type {kind.__name__}")
        return
    smallest = 1 if kind is int else -_LARGEST
    if type(value) not in (int, kind) or not smallest <= value <= _LARGEST:
        raise ValueError(f"{name} is {value!r}; it must be of type {kind.__name__}, {smallest} to {_LARGEST}")
