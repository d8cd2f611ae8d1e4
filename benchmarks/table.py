"""Writes the records in results/ as tables into README.md, between its two markers: denoise, scaling, auto-layout.

python benchmarks/table.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from record import RESULTS

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- results: written by table.py -->", "<!-- end of results -->"
_PEERS = ("diffusers:f32", "diffusers:bf16", "compiled:f32", "compiled:bf16")


def tables(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown of all records by name: steps first, then layouts, then choices among them."""
    parts = [_denoise(record) for name, record in sorted(records.items()) if name.startswith("denoise")]
    parts += [_scaling(record) for name, record in sorted(records.items()) if name.startswith("scaling")]
    parts += [
        _auto_layout(record) for name, record in sorted(records.items()) if name.startswith("auto-layout")
    ]
    return "\n\n".join(parts)


def insert(text: str, tables: str) -> str:
    """`text` with `tables` between the markers. Raises ValueError without them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{README.name} has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def _denoise(record: Mapping[str, Any]) -> str:
    rows = record["measured"]
    peers = [peer for peer in _PEERS if peer in rows]
    head = ["", "ms", "GFLOP/s", "of the peak", "error", "/ ggml", *(f"/ {peer}" for peer in peers), "rounds"]
    body = []
    for name, row in rows.items():
        ggml = row["time_ratio"].get(f"ggml:{name.split(':')[1]}")
        ratios = [_ratio(row["time_ratio"].get(peer)) for peer in peers]
        share, error = row.get("share_of_peak"), row.get("error_to_diffusers_f32")
        body.append(
            [
                name,
                f"{row['median_ms']:.0f}",
                f"{row['gflop_per_s']:.0f}",
                "" if share is None else f"{share:.0%}",
                f"{error:.1e}" if error else "",
                _ratio(ggml),
                *ratios,
                str(row["rounds"]),
            ]
        )
    failed = [f"\n{name} took no part: {reason}." for name, reason in record["failed"].items()]
    return "\n".join(
        [f"**{_title(record)}**, {record['threads']} thread(s)", "", *_table(head, body), *failed]
    )


def _auto_layout(record: Mapping[str, Any]) -> str:
    title = (
        f"**Choice of a layout**, of {record['cases']} cases: the lowest median in {record['chosen_is_fastest']}; "
        f"no layout faster in every round in {record['chosen_is_unbeaten']}; within {record['near'] - 1:.0%} of the "
        f"fastest in {record['chosen_is_near']}"
    )
    head = ["case", "ranks", "chosen", "predicted ms", "measured ms", "fastest", "its ms", "layouts"]
    body = []
    for row in record["rows"]:
        chosen, fastest, measured = row["chosen"], row["fastest"], row["measured_ms"]
        times = (row["predicted_ms"][chosen], measured[chosen], measured[fastest])
        predicted, took, least = (f"{milliseconds:.1f}" for milliseconds in times)
        names = [f"`{flags}`" if flags.startswith("-") else flags for flags in (chosen, fastest)]
        body.append(
            [row["case"], str(row["ranks"]), names[0], predicted, took, names[1], least, str(len(measured))]
        )
    return "\n".join([title, "", *_table(head, body)])


def _scaling(record: Mapping[str, Any]) -> str:
    peer = f", diffusers in {record['peer_dtype']}" if record.get("peer_dtype") else ""
    title = f"**{_title(record)}**, edgedit in {record['dtype']}{peer}"
    layouts = [
        [name, f"{row['median_ms']:.0f}", _shares(row.get("wait_share")), _shares(row.get("exchange_share"))]
        for name, row in record["measured"].items()
    ]
    ratios = [
        [name, f"{ratio['of_medians']:.3f}", f"{ratio['of_pairs']:.3f}"]
        for name, ratio in record["time_ratio"].items()
    ]
    head = ["layout, ranks x threads", "ms", "waiting, by rank", "exchanging, by rank"]
    return "\n".join(
        [title, "", *_table(head, layouts), "", *_table(["time of", "by medians", "by pairs"], ratios)]
    )


def _title(record: Mapping[str, Any]) -> str:
    return (
        f"{record['model']}: width {record['dim']}, {record['double_blocks']} + {record['single_blocks']} blocks, "
        f"{record['image_tokens']} + {record['text_tokens']} tokens"
    )


def _ratio(ratio: Mapping[str, float] | None) -> str:
    return "" if ratio is None else f"{ratio['of_medians']:.2f}"


def _shares(shares: Iterable[float] | None) -> str:
    return ", ".join(f"{share:.1%}" for share in shares or ())


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body)]


def main() -> None:
    records = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    README.write_text(insert(README.read_text(), tables(records)))


if __name__ == "__main__":
    main()
