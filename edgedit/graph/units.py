"""Numbers for reading."""

from __future__ import annotations


def binary(nbytes: float) -> str:
    """Bytes, as "512 B", "30.4 MiB" or "22.2 GiB"."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes:.0f} B"


def flop(flops: float) -> str:
    """Floating-point operations, as "0", "56.6 MFLOP" or "9.7 TFLOP"."""
    for factor, unit in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP")):
        if flops >= factor:
            return f"{flops / factor:.1f} {unit}"
    return f"{flops:.0f}" if not flops else f"{flops:.0f} FLOP"
