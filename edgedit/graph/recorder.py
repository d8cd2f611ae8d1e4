"""Records every ggml node as it is built, so that the planner can work without ggml."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from edgedit.errors import GgmlError
from edgedit.graph import _ggml
from edgedit.graph._ggml import lib
from edgedit.graph.counters import COUNTERS
from edgedit.graph.flops import count_flops
from edgedit.graph.node import Node
from edgedit.graph.tensor import Tensor, TensorFields, WeightTensor, ne_of

# A ggml context cannot grow: a graph takes another one when the last is nearly full.
CONTEXT_TENSORS = 4096
MAX_LEAVES = 4096
# One call into ggml may create several tensors (a convolution is five nodes); leave room for them.
_HEADROOM = 32


class Recorder:
    """Owns the ggml contexts of one graph and the list of its nodes in program order.

    Inputs and constants live in a context of their own: memory that the graph allocator never recycles.
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.pointers: list[Any] = []  # ggml tensor of each node, same index
        self.inputs: dict[str, Tensor] = {}
        self.constants: list[tuple[Tensor, np.ndarray]] = []
        self.outputs: dict[str, Tensor] = {}
        self._node_of_address: dict[int, int | None] = {}
        self._scopes: list[str] = []
        self._contexts: list[Any] = []
        self._leaf_context = _new_context(MAX_LEAVES)
        self._num_leaves = 0
        self._parameters: dict[int, Tensor] = {}
        COUNTERS.graphs_built += 1

    # names

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names of tensors built inside with `name`."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def _qualified(self, name: str) -> str:
        return ".".join([*self._scopes, name])

    # leaves

    def input(self, name: str, shape: tuple[int, ...], dtype: str = "f32") -> Tensor:
        """A tensor whose values are given at each run. Raises ValueError when the name is taken."""
        if name in self.inputs:
            raise ValueError(f"graph {self.name!r} already has an input {name!r}")
        self.inputs[name] = tensor = self._leaf(name, shape, dtype)
        return tensor

    def constant(self, name: str, values: np.ndarray) -> Tensor:
        """A tensor whose values are fixed when the graph is built (float32, float16 or int32)."""
        dtype = {"float32": "f32", "float16": "f16", "int32": "i32"}.get(values.dtype.name)
        if dtype is None:
            raise ValueError(f"constant {name!r}: {values.dtype.name} is none of float32, float16, int32")
        tensor = self._leaf(self._qualified(name), values.shape, dtype)
        self.constants.append((tensor, np.ascontiguousarray(values)))
        return tensor

    def parameter(self, weight: WeightTensor) -> Tensor:
        """The handle of a weight inside this graph."""
        key = ctypes.addressof(weight.pointer.contents)
        if key not in self._parameters:
            self._node_of_address[key] = None
            self._parameters[key] = Tensor(
                weight.pointer, weight.shape, weight.dtype, weight.name, packed=weight.packed
            )
        return self._parameters[key]

    def output(self, name: str, tensor: Tensor) -> Tensor:
        """Mark a node's result as an output: it stays readable after a run."""
        if tensor.node is None:
            raise ValueError(f"output {name!r}: {tensor!r} is a leaf, not the result of a node")
        if name in self.outputs:
            raise ValueError(f"graph {self.name!r} already has an output {name!r}")
        if not tensor.is_contiguous:
            raise ValueError(f"output {name!r}: {tensor!r} is a strided view; make it contiguous first")
        lib.ggml_set_output(tensor.pointer)
        self.outputs[name] = tensor
        return tensor

    def _leaf(self, name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
        if dtype not in _ggml.TYPE_IDS:
            raise ValueError(f"tensor {name!r}: dtype {dtype!r} is none of {', '.join(_ggml.TYPE_IDS)}")
        if self._num_leaves == MAX_LEAVES:
            raise GgmlError(
                f"graph {self.name!r} has {MAX_LEAVES} inputs and constants; no more are possible"
            )
        self._num_leaves += 1
        pointer = lib.ggml_new_tensor_4d(self._leaf_context, _ggml.TYPE_IDS[dtype], *ne_of(shape))
        lib.ggml_set_name(pointer, name[-63:].encode())
        self._node_of_address[ctypes.addressof(pointer.contents)] = None
        return Tensor(pointer, tuple(shape), dtype, name)

    # nodes

    @property
    def _context(self) -> Any:
        """The ggml context of the next node."""
        if len(self.nodes) + _HEADROOM > len(self._contexts) * (CONTEXT_TENSORS - _HEADROOM):
            self._contexts.append(_new_context(CONTEXT_TENSORS))
        return self._contexts[-1]

    def _emit(
        self,
        pointer: Any,
        shape: tuple[int, ...],
        name: str,
        *,
        after: tuple[int, ...] = (),
        collective: int | None = None,
        op: str | None = None,
        flops: int | None = None,
    ) -> Tensor:
        """Record what a ggml call returned; `shape` is the numpy-order shape that the caller expects.

        `after` lists nodes that must precede this one although ggml does not know it. `op` and `flops` are for
        nodes of our own, which ggml only knows as custom.
        """
        if not pointer:
            raise GgmlError(f"ggml returned no tensor for {self._qualified(name)!r}")
        qualified = self._qualified(name)
        lib.ggml_set_name(pointer, qualified[-63:].encode())
        fields = TensorFields.at(ctypes.addressof(pointer.contents))
        assert fields.shape == ne_of(shape), (
            f"{qualified}: expected shape {list(shape)}, ggml made ne={fields.shape}"
        )
        node = self._record(fields, pointer, qualified, shape, after, collective, op, flops)
        return Tensor(pointer, tuple(shape), _ggml.TYPE_NAMES[fields.type], qualified, node)

    def _record(
        self,
        fields: TensorFields,
        pointer: Any,
        name: str,
        shape: tuple[int, ...],
        after: tuple[int, ...],
        collective: int | None,
        op: str | None = None,
        flops: int | None = None,
    ) -> int:
        sources = [node for source in fields.sources if (node := self._source(source, name)) is not None]
        base = self._node_of_address.get(fields.view_source) if fields.view_source else None
        index = len(self.nodes)
        op = op or _op_label(fields.op, collective, base)
        if flops is None:
            flops = 0 if collective is not None else count_flops(op, fields)
        self.nodes.append(
            Node(
                index=index,
                name=name,
                op=op,
                inputs=tuple(dict.fromkeys([*sources, *after])),
                shape=tuple(shape),
                dtype=_ggml.TYPE_NAMES[fields.type],
                nbytes=0 if fields.view_source else lib.ggml_nbytes(pointer),
                flops=flops,
                base=base,
                collective=collective,
            )
        )
        self.pointers.append(pointer)
        self._node_of_address[fields.address] = index
        return index

    def _source(self, address: int, name: str) -> int | None:
        """The node at an address, recorded now if it is an inner one of a composite ggml call; None for a leaf."""
        if address not in self._node_of_address:
            fields = TensorFields.at(address)
            pointer = ctypes.cast(address, ctypes.POINTER(lib.ggml_tensor))
            return self._record(fields, pointer, f"{name}.inner", tuple(reversed(fields.shape)), (), None)
        return self._node_of_address[address]

    @property
    def leaf_nbytes(self) -> int:
        """Bytes of inputs and constants."""
        leaves = [*self.inputs.values(), *(tensor for tensor, _ in self.constants)]
        return sum(tensor.nbytes for tensor in leaves)

    def release(self) -> None:
        """Free the ggml contexts; handles of this graph must not be used afterwards."""
        while self._contexts:
            lib.ggml_free(self._contexts.pop())
        if self._leaf_context:
            lib.ggml_free(self._leaf_context)
        self._leaf_context = None


def _op_label(op: int, collective: int | None, base: int | None) -> str:
    """The planner's name of a node: ggml's, except that collective nodes are "start" and "wait"."""
    if collective is None:
        return _ggml.op_name(op)
    return "start" if base is None else "wait"


def _new_context(tensors: int) -> Any:
    parameters = lib.ggml_init_params(
        mem_size=tensors * lib.ggml_tensor_overhead(),
        mem_buffer=None,
        no_alloc=True,
    )
    context = lib.ggml_init(parameters)
    if not context:
        raise GgmlError(f"ggml could not create a context for {tensors} tensors")
    return context
