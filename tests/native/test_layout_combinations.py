"""Every combination of degrees up to eight ranks, which are threads: what is legal draws what one rank draws, what is
not is refused before weights are read. Generated, so that no combination is left out."""

import itertools
import math
import random
import re

import numpy as np
import pytest
from tiny import write_flux_pipeline
from tiny_sd3 import write_sd3_pipeline

from edgedit.config import ParallelConfig
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline

DEGREES = {
    "cfg": (1, 2),
    "dp": (1, 2),
    "ulysses": (1, 2, 3),
    "ring": (1, 2, 3),
    "kv_gather": (1, 2),
    "tp": (1, 2),
}
MOST_RANKS = 8
HEADS = 7
WRITERS = {"flux": write_flux_pipeline, "sd3": write_sd3_pipeline}
# 15 image tokens, 7 of text or 16 and 7, 7 heads: nothing divides
CALL = {"num_inference_steps": 2, "height": 12, "width": 20, "seed": 3, "max_sequence_length": 7}
GUIDED = {"flux": {"true_cfg_scale": 3.0}, "sd3": {}}
UNGUIDED = {"flux": {}, "sd3": {"guidance_scale": 1.0}}
PROMPTS = ["a cat", "a dog", "rain"]
SAMPLE = 5  # of each family, for every run of the tests


def combinations():
    for degrees in itertools.product(*DEGREES.values()):
        if 1 < math.prod(degrees) <= MOST_RANKS:
            yield dict(zip(DEGREES, degrees, strict=True))


def is_legal(degrees):
    return degrees["ring"] == 1 or degrees["kv_gather"] == 1


def name_of(degrees):
    return "-".join(f"{axis}{degree}" for axis, degree in degrees.items() if degree > 1)


def cases():
    legal = [degrees for degrees in combinations() if is_legal(degrees)]
    for index, family in enumerate(WRITERS):
        sample = {name_of(degrees) for degrees in random.Random(index).sample(legal, SAMPLE)}
        for degrees in legal:
            marks = () if name_of(degrees) in sample else pytest.mark.slow
            yield pytest.param(family, degrees, marks=marks, id=f"{family}-{name_of(degrees)}")


def options_of(degrees):
    return {f"{axis}_degree": degree for axis, degree in degrees.items()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """By family: the directory of a random model, and what one rank draws with it."""
    made = {}

    def of(family):
        if family not in made:
            directory = WRITERS[family](tmp_path_factory.mktemp(family) / "model", heads=HEADS)
            with Pipeline.from_pretrained(directory, threads=1, parallel=ParallelConfig()) as pipeline:
                made[family] = directory, pipeline(PROMPTS, "fog", **CALL, **GUIDED[family]).latents
        return made[family]

    return of


@pytest.mark.parametrize("family, degrees", list(cases()))
def test_a_legal_layout_draws_what_one_rank_draws(alone, family, degrees):
    directory, expected = alone(family)

    def run(context):
        pipeline = Pipeline.from_pretrained(directory, threads=1, parallel=context, progress=False)
        return pipeline(PROMPTS, "fog", **CALL, **GUIDED[family]).latents

    tolerance = 5e-5 if degrees["ring"] > 1 else 1e-5
    ranks = ParallelContext.local(math.prod(degrees.values()), run, **options_of(degrees))
    assert np.isfinite(expected).all()
    for latents in ranks:
        np.testing.assert_array_equal(latents, ranks[0])
    np.testing.assert_allclose(ranks[0], expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize(
    ("degrees", "guidance"),
    [({"cfg": 4, "ring": 2}, GUIDED), ({"cfg": 2, "kv_gather": 2}, UNGUIDED)],
    ids=["two branches on cfg 4", "one branch on cfg 2"],
)
def test_spare_guidance_ranks_draw_along(alone, family, degrees, guidance):
    directory, _ = alone(family)
    call = {**CALL, **guidance[family]}

    def run(context):
        pipeline = Pipeline.from_pretrained(directory, threads=1, parallel=context, progress=False)
        return pipeline("a cat", "fog", **call).latents

    with Pipeline.from_pretrained(directory, threads=1, parallel=ParallelConfig()) as pipeline:
        expected = pipeline("a cat", "fog", **call).latents
    for latents in ParallelContext.local(math.prod(degrees.values()), run, **options_of(degrees)):
        np.testing.assert_allclose(latents, expected, rtol=0, atol=5e-5 * np.abs(expected).max())


ILLEGAL = [degrees for degrees in combinations() if not is_legal(degrees)]


@pytest.mark.parametrize("degrees", ILLEGAL, ids=name_of)
def test_ring_and_gather_at_once_are_refused_with_layouts_for_as_many_ranks(degrees):
    size = math.prod(degrees.values())
    with pytest.raises(ValueError) as refused:
        ParallelConfig(**options_of(degrees), world_size=size, local_world_size=size)
    message = str(refused.value)
    assert f"ring_degree {degrees['ring']} and kv_gather_degree {degrees['kv_gather']}" in message
    check_suggestions(message.split("for instance ")[1].split(" or "), size)


@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize("tp", DEGREES["tp"])
@pytest.mark.parametrize("outer", [{}, {"ring": 2}, {"kv_gather": 2}, {"cfg": 2}, {"dp": 2}])
def test_more_ulysses_ranks_than_heads_are_refused_with_layouts_that_work(alone, family, tp, outer):
    directory, _ = alone(family)
    heads = HEADS // tp
    degrees = {**dict.fromkeys(DEGREES, 1), **outer, "tp": tp, "ulysses": heads + 1}
    size = math.prod(degrees.values())
    parallel = ParallelConfig(**options_of(degrees), world_size=size, local_world_size=size)
    weights = directory / "transformer" / "diffusion_pytorch_model.safetensors"
    weights.rename(directory / "hidden")
    try:
        with pytest.raises(
            ValueError, match=rf"ulysses_degree {heads + 1} is more than the {heads} "
        ) as refused:
            Pipeline.from_pretrained(directory, threads=1, parallel=parallel, progress=False)
    finally:
        (directory / "hidden").rename(weights)
    message = str(refused.value)
    assert f"legal degrees: 1 to {heads}" in message
    suggestions = message.split("alternatives: ")[1].split(", ")
    same = [words.split(" on the same ")[0] for words in suggestions if " on the same " in words]
    check_suggestions(same, size, heads)
    assert suggestions[-1].endswith(f"on {size // (heads + 1) * heads} ranks")


def check_suggestions(suggestions, size, most_ulysses=HEADS):
    """Each fills the world and is legal."""
    assert suggestions
    for flags in suggestions:
        degrees = {
            flag.replace("-", "_"): int(degree) for flag, degree in re.findall(r"--([a-z-]+) (\d+)", flags)
        }
        assert math.prod(degrees.values()) == size, flags
        assert degrees.get("ulysses", 1) <= most_ulysses
        ParallelConfig(**options_of(degrees), world_size=size, local_world_size=size)


@pytest.mark.parametrize(
    "degrees", [{"cfg": 2, "ring": 3}, {"kv_gather": 2, "ulysses": 2}, {"ring": 3, "tp": 2}]
)
def test_degrees_that_do_not_fill_the_world_are_refused_with_those_that_do(degrees):
    product = math.prod(degrees.values())
    with pytest.raises(ValueError, match=f"= {product} ranks, but the world has 8") as refused:
        ParallelConfig(**options_of(degrees), world_size=8, local_world_size=8)
    assert f"mpirun -n {product}" in str(refused.value)
    check_suggestions(str(refused.value).split("choose: ")[1].split(", "), 8, 8)
