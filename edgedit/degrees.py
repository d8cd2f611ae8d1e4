"""Which degrees fill a world, and the flags that say so. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

AXES = ("tp", "ulysses", "ring", "kv_gather", "cfg", "dp")  # fastest first


def flags(degrees: Mapping[str, int]) -> str:
    """For instance "--cfg 2 --kv-gather 2 --ulysses 4"."""
    used = [(axis, degrees.get(axis, 1)) for axis in reversed(AXES)]
    return " ".join(f"--{axis.replace('_', '-')} {degree}" for axis, degree in used if degree > 1)


def degree_choices(world_size: int) -> str:
    """The flags that fill a world, e.g. "--cfg 2 --ulysses 2, --ulysses 4, ...": most likely ones first."""
    if world_size == 1:
        return "no degree flags"
    choices = [{axis: world_size} for axis in ("ulysses", "kv_gather", "ring", "tp", "dp")]
    if world_size % 2 == 0:
        choices.insert(0, {"cfg": 2, "ulysses": world_size // 2})
    return ", ".join(map(flags, choices))


def sequence_degrees(ranks: int, num_heads: int) -> dict[str, int]:
    """How so many ranks share the tokens, if nothing else is said, where each could have a part of `num_heads` heads.

    Two gather keys and values. More are Ulysses ranks, as many as there are heads and as divide them; a ring is for the
    factor left.
    """
    if ranks == 2:
        return {"kv_gather": 2}
    ulysses = max(degree for degree in range(1, min(ranks, num_heads) + 1) if ranks % degree == 0)
    return {"ulysses": ulysses, "ring": ranks // ulysses}


def fewer_ulysses(degrees: Mapping[str, int], most: int) -> Iterator[str]:
    """What to do instead of more than `most` Ulysses ranks: flags for as many ranks first, then for others."""
    ulysses, world_size = degrees["ulysses"], 1
    for degree in degrees.values():
        world_size *= degree
    same = f"on the same {world_size} ranks"
    if degrees["cfg"] == 1 and ulysses % 2 == 0 and ulysses // 2 <= most:
        yield f"{flags({**degrees, 'cfg': 2, 'ulysses': ulysses // 2})} {same}"
    fewer = max(degree for degree in range(1, most + 1) if ulysses % degree == 0)
    outer = "kv_gather" if degrees["kv_gather"] > 1 else "ring"
    grown = degrees[outer] * ulysses // fewer
    yield f"{flags({**degrees, 'ulysses': fewer, outer: grown})} {same}"
    if outer == "ring" and degrees["ring"] == 1:
        yield f"{flags({**degrees, 'ulysses': 1, 'kv_gather': ulysses})} {same}"
    yield f"{flags({**degrees, 'ulysses': most}) or 'no degree flags'} on {world_size // ulysses * most} ranks"
