"""A forecast as a picture: compute and flights of one rank, a panel for each block of steps. Needs matplotlib."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit.errors import EdgeditError
from edgedit.graph.blocks import Block, blocks_of, short_name, work_in
from edgedit.graph.forecast import Forecast
from edgedit.graph.schedule import Schedule, Segment, Start
from edgedit.graph.units import binary, flop

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMPUTE, INSIDE, FLIGHT, INK, FAINT = "#5b7aa6", "#2a9d8f", "#eda63a", "#22303f", "#8894a3"
WIDTH_IN, PANEL_IN, FRAME_IN = 13.0, 1.0, 1.75
# Widths are in hundredths of the longest panel: compute in proportion to its FLOPs, but never invisible.
LENGTH, NARROWEST, GAP = 100.0, 2.6, 0.35
CHARACTER = 0.52  # width of a letter of the labels


@dataclass(frozen=True)
class Bar:
    """A box of a panel, from `left` to `right`."""

    left: float
    right: float
    label: str
    detail: str
    inside: bool = False


def draw(forecast: Forecast, path: Path, format: str = "svg") -> None:
    """Write the picture of the rank in detail. Raises EdgeditError when matplotlib is missing."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EdgeditError(f"--plot needs matplotlib ({error}): pip install 'edgedit[plot]'") from error

    schedule = forecast.schedule
    blocks = blocks_of(schedule)
    scale = _scale(schedule, blocks)
    height = FRAME_IN + PANEL_IN * len(blocks)
    # svg.hashsalt: the same forecast gives the same file
    with rc_context({"font.family": "DejaVu Sans", "svg.hashsalt": "edgedit"}):
        figure = Figure(figsize=(WIDTH_IN, height), facecolor="white")
        for row, block in enumerate(blocks):
            bottom = (0.55 + PANEL_IN * (len(blocks) - 1 - row)) / height
            axes = figure.add_axes((0.13, bottom, 0.85, 0.86 * PANEL_IN / height))
            _panel(axes, *_bars(forecast, block, scale))
            _panel_label(axes, schedule, block)
        _title(figure, forecast, height)
        figure.savefig(path, format=format, metadata={"Date": None} if format == "svg" else None)


def _scale(schedule: Schedule, blocks: list[Block]) -> float:
    """FLOPs per unit of width, such that the block with most work fills a panel."""
    totals = [
        sum(
            step.flops
            for step in schedule.steps[block.begin : block.begin + block.period]
            if isinstance(step, Segment)
        )
        for block in blocks
    ]
    return max([1, *totals]) / (LENGTH * 0.9)


def _bars(forecast: Forecast, block: Block, scale: float) -> tuple[list[Bar], list[Bar]]:
    """Compute and flights of one run of a block. A flight that the block only begins or ends is cut at its edge."""
    schedule = forecast.schedule
    compute: list[Bar] = []
    flights: list[Bar] = []
    departures: dict[int, float] = {}
    x = 0.0
    for step in schedule.steps[block.begin : block.begin + block.period]:
        if isinstance(step, Segment):
            width = max(NARROWEST, step.flops / scale)
            names = work_in(forecast.graph.nodes, schedule.order[step.begin : step.end])
            compute.append(Bar(x, x + width, ", ".join(names), flop(step.flops), inside=bool(departures)))
            x += width
        elif isinstance(step, Start):
            departures[step.collective] = x
        else:
            left = departures.pop(step.collective, 0.0)
            x = max(x, left + NARROWEST)
            flights.append(_flight(schedule, step.collective, left, x))
    flights += [_flight(schedule, c, left, max(x, left + NARROWEST)) for c, left in departures.items()]
    return compute, flights


def _flight(schedule: Schedule, position: int, left: float, right: float) -> Bar:
    collective = schedule.collectives[position]
    name = short_name(collective.name).split(".")[-1]
    return Bar(left, right, name, binary(collective.bytes_sent))


def _panel(axes: Axes, compute: list[Bar], flights: list[Bar]) -> None:
    axes.set_xlim(-0.5, LENGTH + 2)
    axes.set_ylim(0, 2)
    axes.axis("off")
    for bar in compute:
        _box(axes, bar, bottom=1.04, height=0.8, color=INSIDE if bar.inside else COMPUTE)
    free = [0.0, 0.0]  # where each of two lanes ends, words included
    for bar in flights:
        lane = 0 if bar.left >= free[0] else 1
        free[lane] = max(bar.right, bar.left + NARROWEST + CHARACTER * len(f"{bar.label}  {bar.detail}"))
        _box(axes, bar, bottom=0.52 - 0.47 * lane, height=0.4, color=FLIGHT)


def _box(axes: Axes, bar: Bar, bottom: float, height: float, color: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    width = max(0.3, bar.right - bar.left - GAP)
    axes.add_patch(
        FancyBboxPatch(
            (bar.left, bottom), width, height, boxstyle="round,pad=0,rounding_size=0.25", color=color, lw=0
        )
    )
    middle = bottom + height / 2
    flat = height < 0.5
    text: dict[str, Any] = {"va": "center", "color": INK if flat else "white", "fontsize": 7}
    whole = f"{bar.label}  {bar.detail}" if flat else bar.label
    lines = [whole, bar.detail]
    fits = [bool(line) and len(line) * CHARACTER < width for line in lines]
    if flat and not fits[0]:
        # A flight that is shorter than its name carries it on its right, where the wire is idle.
        axes.text(bar.left + width + 0.4, middle, whole, ha="left", **text)
    elif flat:
        axes.text(bar.left + width / 2, middle, whole, ha="center", **text)
    elif all(fits):
        axes.text(bar.left + width / 2, middle, "\n".join(lines), ha="center", linespacing=1.35, **text)
    elif fits[1]:
        axes.text(bar.left + width / 2, middle, bar.detail, ha="center", **text)


def _panel_label(axes: Axes, schedule: Schedule, block: Block) -> None:
    label: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "center", "clip_on": False}
    if block.count > 1:
        axes.text(-0.015, 0.84, f"{block.count} ×", fontsize=13, color=INK, weight="bold", **label)
    axes.text(-0.015, 0.55, _name(schedule, block), fontsize=7.5, color=FAINT, linespacing=1.4, **label)


def _name(schedule: Schedule, block: Block) -> str:
    """The block that the collectives belong to, or the segments' numbers."""
    steps = schedule.steps[block.begin : block.begin + block.period * block.count]
    for step in steps:
        if not isinstance(step, Segment):
            head = schedule.collectives[step.collective].name.split(".")
            if len(head) > 2 and block.count > 1:
                return f"{head[0]}\nfrom {head[1]}".replace("_", " ")
    numbers = [step.index for step in steps if isinstance(step, Segment)]
    if not numbers:
        return ""
    return f"segment {numbers[0]}" if len(numbers) == 1 else f"segments {numbers[0]}-{numbers[-1]}"


def _title(figure: Any, forecast: Forecast, height: float) -> None:
    mesh, schedule = forecast.mesh, forecast.schedule
    used = [f"{axis} {degree}" for axis, degree in reversed(mesh.degrees.items()) if degree > 1]
    layout = f"rank {forecast.detail} of {mesh.world_size} ({' x '.join(used) or 'alone'})"
    sent = binary(schedule.bytes_sent)
    totals = (
        f"one forward pass: {flop(schedule.flops)}, {sent} sent in {len(schedule.collectives)} collectives"
    )
    figure.text(0.02, 1 - 0.3 / height, forecast.title, fontsize=14, color=INK, weight="bold", va="center")
    figure.text(0.02, 1 - 0.62 / height, f"{layout}   {totals}", fontsize=9, color=INK, va="center")
    foot = 0.25 / height
    legend = (
        (COMPUTE, "compute"),
        (INSIDE, "compute inside a flight"),
        (FLIGHT, "collective in flight, bytes sent"),
    )
    for place, (color, words) in zip((0.13, 0.22, 0.37), legend, strict=True):
        figure.text(place, foot, "■", fontsize=11, color=color, va="center")
        figure.text(place + 0.014, foot, words, fontsize=8, color=INK, va="center")
    figure.text(0.98, foot, "width of compute: its FLOPs", fontsize=8, color=FAINT, ha="right", va="center")
