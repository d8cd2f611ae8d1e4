"""What holds for every program: random DAGs with random collectives; memory against brute force."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from planner_programs import Program

from edgedit.graph.node import Node
from edgedit.graph.planner import plan
from edgedit.graph.schedule import Schedule, Segment, Start, Wait


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, tuple[int, ...]]:
    """A program of up to 40 nodes with matmuls, views and collectives in flight at once; and its outputs."""
    p = Program()
    readable: list[int] = []  # a start node is not: nobody may read before the wait
    pending: list[int] = []
    for step in range(draw(st.integers(1, 30))):
        choices = ["leaf"]
        if readable:
            choices += ["op", "op", "matmul", "view", "start"]
        if pending:
            choices += ["wait"]
        choice = draw(st.sampled_from(choices))
        sources = (
            draw(st.lists(st.sampled_from(readable), min_size=1, max_size=4, unique=True)) if readable else []
        )
        shape = (2 * draw(st.integers(1, 5)),)
        if choice == "leaf":
            readable.append(p.op(f"leaf{step}", shape=shape))
        elif choice == "op":
            readable.append(p.op(f"op{step}", *sources, shape=shape))
        elif choice == "matmul":
            readable.append(p.matmul(f"matmul{step}", *sources))
        elif choice == "view":
            readable.append(p.op(f"view{step}", sources[0], op="view", base=sources[0], shape=shape))
        elif choice == "start":
            total = draw(st.one_of(st.none(), st.integers(0, 1000)))
            pending.append(p.start(f"c{step}", sources[0], total_count=total))
        else:
            readable.append(p.wait(pending.pop(draw(st.integers(0, len(pending) - 1)))))
    for start in pending:
        readable.append(p.wait(start))
    outputs = draw(st.lists(st.sampled_from(readable), max_size=3, unique=True))
    return p, tuple(outputs)


@given(programs())
def test_every_node_runs_once_and_after_what_it_reads(case):
    p, outputs = case
    schedule = p.plan(*outputs)
    missing = set(range(len(p.nodes))) - set(schedule.order)
    assert len(schedule.order) == len(p.nodes) - len(missing)
    for index in missing:  # views, of which the most that anything wants is another of them
        assert p.nodes[index].op == "view" and index not in outputs
        assert all(node.index in missing for node in p.nodes if index in node.inputs)
    position = {index: at for at, index in enumerate(schedule.order)}
    for node in (p.nodes[index] for index in schedule.order):
        assert all(position[source] < position[node.index] for source in node.inputs)


@given(programs())
def test_steps_cover_the_order_and_no_segment_crosses_a_collective(case):
    p, outputs = case
    schedule = p.plan(*outputs)
    at = 0
    for step in schedule.steps:
        if isinstance(step, Segment):
            assert step.begin == at < step.end
            inside = [p.nodes[index] for index in schedule.order[step.begin : step.end]]
            assert all(node.collective is None for node in inside)
            at = step.end
        else:
            node = p.nodes[schedule.order[step.position]]
            assert step.position == at
            assert (node.op, node.collective) == (
                "start" if isinstance(step, Start) else "wait",
                step.collective,
            )
            at += 1
    assert at == len(schedule.order)
    neighbours = zip(schedule.steps, schedule.steps[1:], strict=False)
    assert not any(isinstance(a, Segment) and isinstance(b, Segment) for a, b in neighbours)


@given(programs())
def test_each_collective_starts_once_in_program_order_and_before_its_wait(case):
    p, outputs = case
    steps = p.plan(*outputs).steps
    starts = [step.collective for step in steps if isinstance(step, Start)]
    waits = [step.collective for step in steps if isinstance(step, Wait)]
    assert starts == list(range(len(p.collectives)))
    assert sorted(waits) == starts
    for c in starts:
        kinds = [type(step) for step in steps if not isinstance(step, Segment) and step.collective == c]
        assert kinds == [Start, Wait]


@given(programs(), st.data())
def test_order_does_not_depend_on_what_one_rank_holds(case, data):
    p, outputs = case
    here = p.plan(*outputs)
    rows = data.draw(st.integers(1, 50))
    there = Program(rank=1)
    there.nodes = [
        replace(n, shape=(n.shape[0] * rows,), nbytes=n.nbytes * rows, flops=n.flops * rows + rows)
        for n in p.nodes
    ]
    for c in p.collectives:
        counts = data.draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
        there.collectives.append(replace(c, rank=1, send_counts=counts, recv_counts=counts[::-1]))
    other = there.plan(*outputs)
    assert other.order == here.order
    assert other.signature == here.signature
    assert other.digest == here.digest


@given(programs())
def test_crossing_tensors_are_those_read_from_earlier_segments(case):
    p, outputs = case
    schedule = p.plan(*outputs)
    earlier: set[int] = set()
    for segment in schedule.segments:
        inside = schedule.order[segment.begin : segment.end]
        read = {source for index in inside for source in p.nodes[index].inputs}
        assert set(segment.reads) == read & earlier
        earlier.update(inside)


def live_nbytes(nodes: list[Node], schedule: Schedule, outputs: tuple[int, ...], at: int) -> int:
    """Bytes that must exist while the node at position `at` runs: who still needs which storage?"""

    def owner(index: int) -> int:
        base = nodes[index].base
        return index if base is None else owner(base)

    total = 0
    for node in (nodes[index] for index in schedule.order[: at + 1]):
        later = [nodes[index] for index in schedule.order[at:]]
        needed = any(owner(source) == node.index for reader in later for source in reader.inputs)
        running = schedule.order[at] == node.index
        kept = any(owner(output) == node.index for output in outputs)
        if needed or running or kept:
            total += node.nbytes
    return total


@settings(max_examples=60)
@given(programs())
def test_peak_memory_agrees_with_brute_force(case):
    p, outputs = case
    schedule = p.plan(*outputs)
    expected = max(live_nbytes(p.nodes, schedule, outputs, at) for at in range(len(schedule.order)))
    assert schedule.peak_nbytes == expected


def test_receive_storage_lives_until_the_last_reader_of_a_view_of_the_wait():
    p = Program()
    big = p.op("send", shape=(1000,))
    wait = p.exchange("swap", big)
    view = p.op("view", wait, op="view", base=wait, shape=(1000,))
    x = p.op("x", wait)
    y = p.op("y", x, shape=(500,))
    schedule = plan(p.nodes, p.collectives, [p.op("z", view, y)])
    # receive 1000 + x 4 + y 500 while y runs; send 1000 + receive 1000 while in flight is the peak
    assert schedule.peak_nbytes == 4 * 2000
