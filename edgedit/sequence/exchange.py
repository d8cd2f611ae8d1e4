"""The all-to-all between sharded tokens and sharded heads, built of stock ggml nodes.

Packing and unpacking are the block copies of a layout, each one `write` node: every element is copied once. This is
the generic path that fused operators are held against.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgedit.config import WIRE_BLOCKS
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.sequence.layouts import BlockCopy, SPAllToAll4DBatchLayout
from edgedit.sequence.wire import count_on_wire, from_wire, to_wire

ITEMSIZE = 4


def streams_to_heads(
    b: GraphBuilder,
    layout: SPAllToAll4DBatchLayout,
    streams: Sequence[Sequence[Tensor]],
    axis: str,
    wire: str | Sequence[str] = "f32",
) -> Tensor:
    """streams[i][plane] [B, s_i, H, D] -> the joint tensor [B, S, h, planes * D] of this rank's heads.

    Planes whose types on the wire differ are rounded to them and travel in f32: the same numbers, more bytes.
    """
    types = (wire,) * layout.planes if isinstance(wire, str) else tuple(wire)
    wire_dtype = types[0]
    if len(set(types)) > 1:
        streams = [
            [b.cast(b.cast(b.contiguous(x), dtype), "f32") for x, dtype in zip(planes, types, strict=True)]
            for planes in streams
        ]
        wire_dtype = "f32"
    send = b.empty((sum(layout.send_counts),), "send")
    for copy in layout.sequence_side():
        send = _into_buffer(b, send, streams[copy.stream][copy.plane], copy)
    received = _all_to_all(b, layout, send, axis, wire_dtype)
    return _from_buffer(b, received, b.empty(layout.joint_shape, "joint"), layout.head_side())


def heads_to_streams(
    b: GraphBuilder, layout: SPAllToAll4DBatchLayout, joint: Tensor, axis: str, wire_dtype: str = "f32"
) -> list[Tensor]:
    """The joint tensor [B, S, h, D] of this rank's heads -> each stream's [B, s_i, H, D] (one plane)."""
    send = b.empty((sum(layout.send_counts),), "send")
    for copy in layout.head_side():
        send = _into_buffer(b, send, joint, copy)
    received = _all_to_all(b, layout, send, axis, wire_dtype)
    outputs = []
    for stream, tokens in enumerate(layout.local_lengths):
        target = b.empty((layout.batch, tokens, layout.num_heads, layout.head_dim), "local")
        copies = (copy for copy in layout.sequence_side() if copy.stream == stream)
        outputs.append(_from_buffer(b, received, target, copies))
    return outputs


def _all_to_all(
    b: GraphBuilder, layout: SPAllToAll4DBatchLayout, send: Tensor, axis: str, wire_dtype: str
) -> Tensor:
    sent, received = (
        [count_on_wire(wire_dtype, count) for count in counts]
        for counts in (layout.send_counts, layout.recv_counts)
    )
    total = layout.total_count
    exchanged = b.collective(
        "all_to_all",
        layout.direction.value,
        axis,
        to_wire(b, b.reshape(send, _rows(send.count, layout)) if wire_dtype in WIRE_BLOCKS else send, wire_dtype),
        (sum(received),),
        sent,
        received,
        layout.rank,
        total_count=None if total is None else count_on_wire(wire_dtype, total),
    )
    values = sum(layout.recv_counts)
    if wire_dtype in WIRE_BLOCKS:
        return b.reshape(from_wire(b, exchanged, wire_dtype, _rows(values, layout)), (values,))
    return b.cast(exchanged, "f32")


def _rows(values: int, layout: SPAllToAll4DBatchLayout) -> tuple[int, int]:
    return values // layout.head_dim, layout.head_dim


def _into_buffer(b: GraphBuilder, buffer: Tensor, tensor: Tensor, copy: BlockCopy) -> Tensor:
    if 0 in copy.shape:
        return buffer
    # the tensor's own strides count: it may be a view, such as the q part of a fused projection
    steps = tuple(stride // ITEMSIZE for stride in tensor.strides)
    dense = _dense_strides(tensor.shape)
    offset = sum(index * step for index, step in zip(_unravel(copy.tensor_offset, dense), steps, strict=True))
    source = b.view(tensor, copy.shape, [step * ITEMSIZE for step in steps], offset * ITEMSIZE)
    return b.write(buffer, source, copy.buffer_strides, copy.buffer_offset)


def _from_buffer(b: GraphBuilder, buffer: Tensor, tensor: Tensor, copies: Iterable[BlockCopy]) -> Tensor:
    for copy in copies:
        if 0 in copy.shape:
            continue
        strides = [stride * ITEMSIZE for stride in copy.buffer_strides]
        source = b.view(buffer, copy.shape, strides, copy.buffer_offset * ITEMSIZE)
        tensor = b.write(tensor, source, copy.tensor_strides, copy.tensor_offset)
    return tensor


def _dense_strides(shape: tuple[int, ...]) -> list[int]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides


def _unravel(offset: int, strides: Sequence[int]) -> list[int]:
    """The index of the element that stands at `offset` of a packed tensor."""
    index = []
    for stride in strides:
        position, offset = divmod(offset, stride)
        index.append(position)
    return index
