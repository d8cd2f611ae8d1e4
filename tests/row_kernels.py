"""Kernels for tests of equal bits, whatever auto stands for."""

from __future__ import annotations

from edgedit.kernels import PORTABLE, chosen

# They give a row the same bits wherever it stands, which ggml's own and oneDNN's do not.
ROW_KERNELS = chosen("auto") if chosen("auto") in ("avx512", "avx2", PORTABLE) else PORTABLE
