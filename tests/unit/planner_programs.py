"""Writes small programs for the planner's tests, one line per node."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from edgedit.graph.collective import Collective
from edgedit.graph.node import Node
from edgedit.graph.planner import plan
from edgedit.graph.schedule import Schedule, Segment, Start


class Program:
    """Nodes and collectives in program order, as the graph builder hands them to the planner."""

    def __init__(self, rank: int = 0, size: int = 2) -> None:
        self.rank, self.size = rank, size
        self.nodes: list[Node] = []
        self.collectives: list[Collective] = []

    def op(self, name: str, *inputs: int, op: str = "add", flops: int = 1, **fields: Any) -> int:
        fields = {"shape": (4,), "dtype": "f32", "base": None, **fields}
        nbytes = 0 if fields["base"] is not None else 4 * prod(fields["shape"])
        self.nodes.append(Node(len(self.nodes), name, op, inputs, nbytes=nbytes, flops=flops, **fields))
        return len(self.nodes) - 1

    def matmul(self, name: str, *inputs: int) -> int:
        return self.op(name, *inputs, op="mul_mat", flops=100)

    def start(self, name: str, send: int, *, kind: str = "all_to_all", **fields: Any) -> int:
        """Add the start node of a collective, which `wait` completes."""
        shape = self.nodes[send].shape
        counts = (prod(shape) // self.size,) * self.size
        fields = {"axis": "ulysses", "send_counts": counts, "recv_counts": counts, **fields}
        position = len(self.collectives)
        start = self.op(f"{name}.start", send, op="start", shape=shape, collective=position, flops=0)
        self.collectives.append(
            Collective(kind, name, dtype="f32", send=send, start=start, wait=-1, rank=self.rank, **fields)
        )
        return start

    def wait(self, start: int) -> int:
        position = self.nodes[start].collective
        assert position is not None, f"node {start} starts nothing"
        pending = self.collectives[position]
        inputs = (start, pending.send)
        wait = self.op(f"{pending.name}.wait", *inputs, op="wait", base=start, collective=position, flops=0)
        self.collectives[position] = replace(pending, wait=wait)
        return wait

    def exchange(self, name: str, send: int, **fields: Any) -> int:
        return self.wait(self.start(name, send, **fields))

    def plan(self, *outputs: int, degree: int = 1) -> Schedule:
        return plan(self.nodes, self.collectives, outputs, degree=degree)

    def spell(self, schedule: Schedule) -> list[str]:
        """The steps as words: "a b c" for a segment, ">x" for the start of x, "<x" for its wait."""
        words = []
        for step in schedule.steps:
            if isinstance(step, Segment):
                words.append(" ".join(self.nodes[i].name for i in schedule.order[step.begin : step.end]))
            else:
                mark = ">" if isinstance(step, Start) else "<"
                words.append(mark + self.collectives[step.collective].name)
        return words
