"""A network as a GGUF file under the names that other programs look for, written tensor by tensor."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from edgedit.errors import CheckpointError
from edgedit.host import usable_cores
from edgedit.weights.checkpoint import listing
from edgedit.weights.convert import converted_pieces, part_of
from edgedit.weights.gguf_writer import Layout, PlannedTensor, write
from edgedit.weights.name_map import architecture
from edgedit.weights.pieces import Piece, pieces_of
from edgedit.weights.quantisation import AS_STORED, Rule, choose_type
from edgedit.weights.sources import TensorSource
from edgedit.weights.told import CONFIG_KEY

if TYPE_CHECKING:
    import numpy as np

QUANTISATION_VERSION = 2
# Of llama.cpp's enumeration of what a file mostly holds.
FILE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k": 11, "q4_k": 14,
    "q5_k": 16, "q6_k": 18, "iq4_nl": 25, "iq3_s": 26, "iq4_xs": 30, "bf16": 32,
}  # fmt: skip


@dataclass(frozen=True)
class Convention:
    """How files of an architecture are published.

    title     general.architecture
    spelling  one of names/ARCHITECTURE.json
    prefix    before the names of modules in `below`
    rules     types of tensors that are not to be quantised by default: the first and last layers, which are small and
              to which pictures are sensitive
    matrices  of pattern: tensors that are convolutions of one pixel in the original and matrices here
    """

    title: str
    spelling: str
    rules: tuple[str, ...] = ()
    prefix: str = ""
    below: tuple[str, ...] = ()
    matrices: str | None = None


_SD3_ENDS = r"^(x_embedder|context_embedder|t_embedder|y_embedder|final_layer|pos_embed)"
CONVENTIONS = {
    "flux": Convention("flux", "original", (r"^(img_in|txt_in|time_in|vector_in|guidance_in|final_layer)\.",)),
    "sd3": Convention("sd3", "original", (_SD3_ENDS,)),
    "t5": Convention("t5encoder", "llama.cpp", (r"attn_rel_b",)),
    "clip": Convention(
        "clip", "transformers", (r"embedding",), "text_model.", ("embeddings", "encoder", "final_layer_norm")
    ),
    "autoencoder_kl": Convention("vae", "original", matrices=r"\.attn_1\.(q|k|v|proj_out)\.weight$"),
}


class Export:
    """A planned file: its layout, and where each tensor comes from. Nothing is read yet.

    Args:
        kind: architecture, one of CONVENTIONS.
        config: content of config.json, kept in the file.
        source: the network's tensors.
        keys: key of each parameter in the source.
        dtype: type of what no rule is for.
        rules: by the names in the file; the first that fits counts. Those of the convention come after them.

    Raises:
        ValueError: for a rule that cannot be followed, or that no tensor is for.
        CheckpointError: for tensors that have no name in such files.
    """

    def __init__(
        self,
        kind: str,
        config: Mapping[str, Any],
        source: TensorSource,
        keys: Mapping[str, str],
        dtype: str,
        rules: Sequence[Rule] = (),
    ) -> None:
        convention = CONVENTIONS[kind]
        self._source = source
        self._keys = {_spelled(name, convention): key for name, key in keys.items()}
        shapes = {name: source.shape(key) for name, key in self._keys.items()}
        targets = architecture(kind).spelling(convention.spelling).bind(()).sources(shapes)
        nameless = shapes.keys() - {target.name for found in targets.values() for target in found}
        if nameless:
            raise CheckpointError(
                f"{source.path}: {len(nameless)} tensors have no name in GGUF files of {convention.title}: "
                f"{listing(sorted(nameless))}"
            )
        self._pieces = {name: pieces_of(found, shapes) for name, found in targets.items()}
        _check_found(rules, self._pieces)
        rules = (*rules, *(Rule(re.compile(pattern), AS_STORED) for pattern in convention.rules))
        tensors = []
        for name, pieces in self._pieces.items():
            first = shapes[pieces[0].parameter]
            shape = (sum(piece.length for piece in pieces), *first[1:]) if first else ()
            if convention.matrices and len(shape) == 2 and re.search(convention.matrices, name):
                shape = (*shape, 1, 1)
            stored = {source.dtype(self._keys[piece.parameter]) for piece in pieces}
            tensors.append(PlannedTensor(name, shape, choose_type(name, shape, stored, dtype, rules)))
        self.types = Counter(tensor.dtype for tensor in tensors)
        metadata: dict[str, Any] = {
            "general.architecture": convention.title,
            "general.quantization_version": QUANTISATION_VERSION,
            "general.file_type": FILE_TYPES.get(dtype, FILE_TYPES["f16"]),
            CONFIG_KEY: json.dumps(config),
        }
        self.layout = Layout(metadata, tensors)

    def write(self, file: BinaryIO, progress: Callable[[int, int], None] | None = None) -> None:
        """Fill a file, a few rows at a time; `progress` is called with (bytes done, bytes in all).

        Raises CheckpointError for values that cannot be had in their type, OSError where the file system fails.
        """
        cores = usable_cores()
        with ThreadPoolExecutor(cores) as workers:

            def contents(tensor: PlannedTensor) -> Iterator[np.ndarray]:
                for piece in self._pieces[tensor.name]:
                    values, stored, scale = self._rows(piece)
                    yield from converted_pieces(
                        values, stored, tensor.dtype, self._keys[piece.parameter], workers, cores, scale
                    )

            def counted() -> Iterator[Iterator[np.ndarray]]:
                done = len(self.layout.header)
                for tensor in self.layout.tensors:
                    yield contents(tensor)
                    done += tensor.nbytes
                    if progress:
                        progress(done, self.layout.nbytes)

            write(file, self.layout, counted())

    def _rows(self, piece: Piece) -> tuple[np.ndarray, str, np.ndarray | None]:
        """Rows of a parameter as its source gives them."""
        key, source = self._keys[piece.parameter], self._source
        values, scale = source.read(key), source.scale(key)
        if piece.first or (values.ndim and piece.length != len(values) and len(source.shape(key)) <= 2):
            rows = slice(piece.first, piece.first + piece.length)
            values, scale = values[rows], part_of(scale, rows)
        return values, source.dtype(key), scale


def _check_found(rules: Sequence[Rule], names: Iterable[str]) -> None:
    """Raises ValueError for a rule whose expression is in no name, so that a misspelt one is not passed over."""
    for rule in rules:
        if not any(rule.pattern.search(name) for name in names):
            raise ValueError(
                f"rule {rule.pattern.pattern!r}: no tensor's name has it; names in the file: {listing(sorted(names))}"
            )


def _spelled(name: str, convention: Convention) -> str:
    return convention.prefix + name if name.startswith(convention.below) and convention.prefix else name
