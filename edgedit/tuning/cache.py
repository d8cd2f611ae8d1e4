"""Where measurements are kept: one JSON file for each host, processor, kernels and version, in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import edgedit
from edgedit.tuning import machine
from edgedit.tuning.machine import Curve, Machine, Rates

_CPU_INFO = Path("/proc/cpuinfo")


def directory(env: Mapping[str, str] | None = None) -> Path:
    """$XDG_CACHE_HOME/edgedit, by default ~/.cache/edgedit."""
    env = os.environ if env is None else env
    home = env.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "edgedit"


def identity(kernels: str, options: Mapping[str, str]) -> dict[str, str]:
    """What measurements hold for."""
    return {
        "host": platform.node(),
        "processor": _processor(),
        "kernels": kernels,
        "version": edgedit.__version__,
        **options,
    }


class Measurements:
    """The machines measured on this host, by the number of ranks that computed on it at once.

    options  of `edgedit tune` that were given and change what is measured, such as {"backend": "mpi"}
    """

    def __init__(
        self, kernels: str, folder: Path | None = None, options: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.identity = identity(kernels, options)
        self._options = options
        key = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:16]
        self.path = (folder or directory()) / f"machine-{key}.json"

    def read(self) -> dict[int, Machine]:
        """By ranks; empty where nothing was measured or the file is none of ours."""
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
            return {int(ranks): machine.from_json(entry) for ranks, entry in values["machines"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def add(self, ranks: int, measured: Machine) -> None:
        """Keep a machine; types of weights and links that were measured before and not now are kept too."""
        machines = self.read()
        before = machines.get(ranks)
        if before is not None:
            measured = replace(
                measured,
                rates={**before.rates, **measured.rates},
                links={**before.links, **measured.links},
            )
        machines[ranks] = measured
        values = {
            "of": self.identity,
            "machines": {str(n): machine.as_json(machines[n]) for n in sorted(machines)},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(values, file, indent=1)
            os.replace(partial, self.path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise

    def machine_for(self, ranks: int) -> Machine:
        """The machine when so many ranks compute on it at once.

        A number that was not measured is told from the nearest one that was: the ranks share its compute, and the links
        are those of any number of ranks. Raises ValueError, with the command to measure, where something is missing.
        """
        machines = self.read()
        if not machines:
            raise ValueError(f"this host was not measured yet; run: {self._command(1)}")
        linked = [n for n in machines if machines[n].links]
        if ranks > 1 and not linked:
            raise ValueError(f"the links between ranks were not measured yet; run: {self._command(ranks)}")
        nearest = min(machines, key=lambda n: (abs(n - ranks), -n))
        found = machines[nearest]
        if ranks > 1 and not found.links:
            found = replace(found, links=machines[min(linked, key=lambda n: abs(n - ranks))].links)
        if nearest == ranks:
            return found
        share = nearest / ranks
        rates = {dtype: _scaled(rates, share) for dtype, rates in found.rates.items()}
        memory = None if found.memory_nbytes is None else int(found.memory_nbytes * share)
        return replace(found, rates=rates, ranks_per_node=ranks, memory_nbytes=memory)

    def _command(self, ranks: int) -> str:
        launched = [] if ranks == 1 else ["mpirun", "-n", str(ranks)]
        options = [word for name, value in self._options.items() for word in (f"--{name}", value)]
        return " ".join([*launched, "edgedit", "tune", *options])


def _scaled(rates: Rates, share: float) -> Rates:
    def curve(of: Curve) -> Curve:
        return Curve(tuple((size, rate * share) for size, rate in of.points))

    return replace(
        rates, product=curve(rates.product), attention=curve(rates.attention), other=rates.other * share
    )


def _processor() -> str:
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
