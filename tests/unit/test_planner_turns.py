"""Collectives start in program order even on a rank that has nothing to compute for one of them."""

from planner_programs import Program


def two_exchanges(owns_tokens: bool) -> Program:
    """Attention of two blocks; without tokens, what a rank sends into the second depends on nothing."""
    program = Program()
    first = program.exchange("first", program.op("x"))
    back = program.exchange("back", program.matmul("attention", first))
    send = program.op("y", back) if owns_tokens else program.op("empty", op="custom")
    second = program.exchange("second", send)
    program.matmul("end", second)
    return program


def starts(program: Program) -> list[str]:
    return [word for word in program.spell(program.plan(len(program.nodes) - 1)) if word.startswith(">")]


def test_a_start_keeps_its_turn():
    expected = [">first", ">back", ">second"]
    assert starts(two_exchanges(owns_tokens=True)) == expected
    assert starts(two_exchanges(owns_tokens=False)) == expected
