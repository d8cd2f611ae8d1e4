"""The memory that ggml's allocator takes, against cases that can be followed by hand."""

from planner_programs import Program as AnyProgram

from edgedit.graph.placement import allocated_nbytes
from edgedit.graph.planner import plan


class Program(AnyProgram):
    """Of operations that cannot work in place, unless they are said to be others."""

    def op(self, name, *inputs, op="linear", **fields):
        return super().op(name, *inputs, op=op, **fields)


def buffer_of(p, *outputs):
    return plan(p.nodes, p.collectives, outputs).buffer_nbytes


def test_storage_is_reused_after_its_last_reader():
    p = Program()
    a = p.op("a", shape=(800,))
    b = p.op("b", a, shape=(800,))
    c = p.op("c", b, shape=(800,))
    assert buffer_of(p, c) == 2 * 4 * 800


def test_a_hole_that_is_too_small_stays_empty():
    p = Program()
    small = p.op("small", shape=(80,))
    held = p.op("held", small, shape=(800,))
    big = p.op("big", held, shape=(160,))  # small's place, freed by now, cannot hold it
    last = p.op("last", held, big, shape=(8,))
    schedule = plan(p.nodes, p.collectives, [last])
    assert schedule.buffer_nbytes == 4 * (80 + 800 + 160)
    assert schedule.peak_nbytes == 4 * (800 + 160 + 8)


def test_the_smallest_fitting_hole_is_taken():
    p = Program()
    first, wall = p.op("first", shape=(800,)), p.op("wall", shape=(8,))
    second, end = p.op("second", shape=(80,)), p.op("end", shape=(8,))
    free = p.op("free", first, second, shape=(8,))
    fits = p.op("fits", free, shape=(80,))  # in second's place, so that first's stays whole
    again = p.op("again", fits, shape=(800,))
    last = p.op("last", wall, end, again, fits, shape=(8,))
    assert buffer_of(p, last) == 4 * (800 + 8 + 80 + 8 + 8)


def test_operations_of_ggml_that_can_work_in_place_do():
    p = Program()
    a = p.op("a", shape=(800,))
    b = p.op("b", a, op="add", shape=(800,))
    c = p.op("c", b, op="unary", shape=(800,))
    assert buffer_of(p, c) == 4 * 800
    kept = p.op("kept", c, b, op="mul", shape=(800,))
    assert buffer_of(p, kept) == 2 * 4 * 800  # b is still needed while c is made


def test_outputs_and_what_nobody_reads_live_to_the_end():
    p = Program()
    a = p.op("a", shape=(800,))
    p.op("unread", a, shape=(800,))
    b = p.op("b", a, shape=(800,))
    c = p.op("c", b, shape=(800,))
    assert allocated_nbytes(p.nodes, range(4), [c]) == 3 * 4 * 800
