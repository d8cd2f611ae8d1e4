"""A forecast as text: ranks, groups, memory, and the steps of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgedit.graph.blocks import Block, blocks_of, work_in
from edgedit.graph.collective import Collective
from edgedit.graph.forecast import Forecast
from edgedit.graph.schedule import Schedule, Segment, Start
from edgedit.graph.units import binary, flop
from edgedit.parallel.mesh import WORLD

# From this many ranks on, equal ranks share a line unless every rank is asked for.
MANY_RANKS = 16


def as_text(forecast: Forecast, *, full: bool = False, every_rank: bool = False) -> str:
    """The forecast for reading. `full` prints every step instead of folding repeated blocks."""
    sections = [
        _heading(forecast),
        _ranks(forecast, every_rank or forecast.mesh.world_size < MANY_RANKS),
        _groups(forecast),
        _memory(forecast),
        _steps(forecast, full),
        [f"note: {note}" for note in forecast.notes],
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def table(rows: Sequence[Sequence[str]], left: frozenset[int] = frozenset()) -> list[str]:
    """Aligned lines; columns are right-aligned but for those in `left`."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _heading(forecast: Forecast) -> list[str]:
    facts = "  ".join(f"{name.replace('_', ' ')} {value}" for name, value in forecast.facts.items())
    counts = {len(forecast.passes_of(rank)) for rank in range(forecast.mesh.world_size)}
    span = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(forecast.passes)
    passes = f"{span} forward pass{'es' if forecast.passes > 1 else ''} a step on each rank"
    return [
        forecast.title,
        facts,
        f"{forecast.steps} steps, {passes}",
        f"schedule {forecast.schedule.digest}",
    ]


def _ranks(forecast: Forecast, every_rank: bool) -> list[str]:
    mesh = forecast.mesh
    used = [axis for axis, degree in mesh.degrees.items() if degree > 1]
    product = " x ".join(f"{axis} {mesh.degrees[axis]}" for axis in reversed(used)) or "one rank"
    rows = [["rank", *used, "FLOP/step", "sent/step", "sent/run", "memory"]]
    lines: dict[tuple[str, ...], list[int]] = {}
    for rank in range(mesh.world_size):
        numbers = (
            flop(forecast.flops_per_step[rank]),
            binary(forecast.bytes_sent_per_step[rank]),
            binary(forecast.bytes_sent[rank]),
            binary(forecast.total_nbytes(rank)),
        )
        if every_rank:
            place = mesh.coords(rank)
            rows.append([str(rank), *(str(place[axis]) for axis in used), *numbers])
        else:
            lines.setdefault(numbers, []).append(rank)
    rows += [[ranges(members), *("" for _ in used), *numbers] for numbers, members in lines.items()]
    return [f"Ranks: {mesh.world_size} = {product}", *table(rows)]


def _groups(forecast: Forecast) -> list[str]:
    rows = [
        [axis, "  ".join(str(group).replace(" ", "") for group in groups)]
        for axis, groups in forecast.groups.items()
        if axis != WORLD and len(groups[0]) > 1
    ]
    return ["Groups", *table(rows, left=frozenset({0, 1}))] if rows else []


def _memory(forecast: Forecast) -> list[str]:
    kinds: dict[tuple[int, ...], list[int]] = {}
    for rank in range(forecast.mesh.world_size):
        graphs = (id(a_pass.rank) for a_pass in forecast.passes_of(rank))
        kinds.setdefault((*graphs, forecast.conditions(rank)), []).append(rank)
    dtypes = list(forecast.graph.weight_nbytes)
    has_ahead = forecast.ranks[forecast.detail].ahead is not None
    heads = ["activations", "inputs", *(["ahead"] if has_ahead else []), "total"]
    rows = [["ranks", *(f"weights {dtype}" for dtype in dtypes), *heads]]
    for members in kinds.values():
        rank = members[0]
        weight_nbytes = forecast.ranks[rank].graph.weight_nbytes
        weights = [binary(weight_nbytes.get(dtype, 0)) for dtype in dtypes]
        activations, inputs = map(binary, forecast.run_nbytes(rank))
        ahead = [binary(forecast.ahead_nbytes(rank))] if has_ahead else []
        total = binary(forecast.total_nbytes(rank))
        rows.append([ranges(members), *weights, activations, inputs, *ahead, total])
    return [f"Memory of {forecast.graph.name} per rank, estimated", *table(rows)]


def _steps(forecast: Forecast, full: bool) -> list[str]:
    schedule = forecast.schedule
    blocks = [Block(0, len(schedule.steps), 1)] if full else blocks_of(schedule)
    rows: list[tuple[str, ...]] = []
    headings: dict[int, str] = {}
    for block in blocks:
        if len(blocks) > 1:
            headings[len(rows)] = f"{block.count} x" if block.count > 1 else "once"
        for number in range(block.begin, block.begin + block.period):
            rows += _row(forecast, schedule, number)
    header = ("", "nodes", "FLOP", "bytes", "")
    aligned = table([header, *rows], left=frozenset({0, 4})) if rows else []
    sent = sum(collective.bytes_sent for collective in schedule.collectives)
    lines = []
    if forecast.ranks[forecast.detail].ahead:
        parts = f" in {forecast.parts} parts" if forecast.parts > 1 else ""
        lines.append(
            f"Ahead of the steps, on each rank: {flop(forecast.flops_ahead(forecast.detail))}{parts}, "
            f"{binary(forecast.kept_nbytes(forecast.detail))} of results that they read"
        )
    lines += [
        f"One forward pass of rank {forecast.detail}: {len(schedule.segments)} segments, "
        f"{len(schedule.collectives)} collectives, {len(schedule.order)} nodes, "
        f"{flop(schedule.flops)}, {binary(sent)} sent"
    ]
    lines += aligned[:1]
    for number, line in enumerate(aligned[1:]):
        if number in headings:
            lines.append(headings[number])
        lines.append(f"  {line}")
    if forecast.guidance:
        gather = forecast.guidance
        lines.append(
            f"then, once a step: {gather.kind} {gather.name} over {gather.axis}, {_to_peers(gather)}"
        )
    return lines


def _row(forecast: Forecast, schedule: Schedule, number: int) -> Iterator[tuple[str, ...]]:
    step = schedule.steps[number]
    if isinstance(step, Segment):
        inside = schedule.order[step.begin : step.end]
        doing = ", ".join(work_in(forecast.graph.nodes, inside))
        size = (str(len(inside)), flop(step.flops), binary(step.nbytes))
        yield (f"segment {step.index}", *size, doing)
        return
    collective = schedule.collectives[step.collective]
    if isinstance(step, Start):
        flight = schedule.overlapped[step.collective]
        during = f"; {flop(flight.flops)} meanwhile" if flight.flops else ""
        what = f"{collective.kind} {collective.name}: {_to_peers(collective)}{during}"
        yield ("> start", "", "", binary(collective.bytes_sent), what)
    else:
        yield ("< wait", "", "", "", collective.name)


def _to_peers(collective: Collective) -> str:
    others = {nbytes for peer, nbytes in enumerate(collective.bytes_per_peer) if peer != collective.rank}
    if not others:
        return "no peers"
    if collective.kind == "ring_shift":
        return f"{binary(collective.bytes_sent)} to the next rank"
    low, high = min(others), max(others)
    span = binary(low) if low == high else f"{binary(low)} to {binary(high)}"
    return f"{span} to each of {collective.size - 1} peer{'s' if collective.size > 2 else ''}"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as "0-3, 8": runs of neighbours are folded."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
