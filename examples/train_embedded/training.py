"""What both training programs share: a budget in minutes, an averaged copy of the weights, a log."""

import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch


class Budget:
    """Counts steps until the minutes, or the steps if given, are spent."""

    def __init__(self, minutes: float, max_steps: int | None) -> None:
        self._seconds = minutes * 60
        self._max_steps = max_steps
        self._start = time.monotonic()
        self.step = 0

    def fraction(self) -> float:
        by_time = (time.monotonic() - self._start) / self._seconds
        return max(by_time, self.step / self._max_steps) if self._max_steps else by_time

    def minutes(self) -> float:
        return (time.monotonic() - self._start) / 60

    def __iter__(self) -> Iterator[int]:
        while self.fraction() < 1:
            yield self.step
            self.step += 1


def cosine(fraction: float, hold: float = 0.0, floor: float = 0.02) -> float:
    """1 while fraction < hold, then half a cosine down to the floor."""
    if fraction < hold:
        return 1.0
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, (fraction - hold) / (1 - hold))))


class Average:
    """Exponential moving average of parameters; its memory grows from nothing to its limit."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], decay: float, ramp: int) -> None:
        self._parameters = list(parameters)
        self._copies = [parameter.detach().clone() for parameter in self._parameters]
        self._decay, self._ramp = decay, ramp

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self._decay, step / (step + self._ramp))
        torch._foreach_lerp_(self._copies, [parameter.data for parameter in self._parameters], 1 - decay)

    @torch.no_grad()
    def store(self) -> None:
        """Write the averages into the parameters."""
        for parameter, copy in zip(self._parameters, self._copies, strict=True):
            parameter.copy_(copy)


class Log:
    """Prints the mean of each named number every `every` steps and appends it to a CSV file."""

    def __init__(self, path: Path, every: int) -> None:
        self._path, self._every = path, every
        self._sums: dict[str, float] = {}
        self._count = 0

    def add(self, budget: Budget, **numbers: float) -> None:
        for name, number in numbers.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(number)
        self._count += 1
        if self._count == self._every:
            means = {name: total / self._count for name, total in self._sums.items()}
            text = " ".join(f"{name} {mean:.4f}" for name, mean in means.items())
            print(f"step {budget.step + 1}, {budget.minutes():.1f} min: {text}", flush=True)
            new = not self._path.exists()
            with open(self._path, "a", encoding="utf-8") as file:
                if new:
                    file.write("step,minutes," + ",".join(means) + "\n")
                row = [str(budget.step + 1), f"{budget.minutes():.2f}"] + [
                    f"{mean:.5f}" for mean in means.values()
                ]
                file.write(",".join(row) + "\n")
            self._sums, self._count = {}, 0
