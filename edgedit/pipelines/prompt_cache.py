"""What the text encoders made of recent prompts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

# At FLUX.1's full 512 tokens of 4096 channels an entry takes 8 MiB.
MAX_PROMPTS = 16

Encoded = TypeVar("Encoded")


class PromptCache(Generic[Encoded]):
    """The `capacity` encoded prompts that were asked for last; the one that was not for longest goes first."""

    def __init__(self, capacity: int = MAX_PROMPTS) -> None:
        self.capacity = capacity
        self._kept: OrderedDict[Hashable, Encoded] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, encode: Callable[[], Encoded]) -> Encoded:
        """What is kept under `key`, made by `encode` where nothing is."""
        if key not in self._kept:
            value = encode()
            while len(self._kept) >= self.capacity:
                self._kept.popitem(last=False)
            self._kept[key] = value
        self._kept.move_to_end(key)
        return self._kept[key]

    def clear(self) -> None:
        self._kept.clear()
