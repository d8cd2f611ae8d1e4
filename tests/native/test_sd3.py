"""The Stable Diffusion 3 transformer on ranks that are threads: equal to one rank, whatever the shape."""

import numpy as np
import pytest
from tiny_sd3 import write_sd3_transformer

from edgedit.config import ParallelConfig
from edgedit.graph.counters import COUNTERS
from edgedit.graph.planner import plan
from edgedit.models.sd3 import SD3Config, SD3Transformer, positions_in_square
from edgedit.parallel.context import ParallelContext

TOLERANCE = 1e-5
MEDIUM_35 = {"qk_norm": "rms_norm", "dual_attention_layers": [0, 1]}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories of random models by head count, written when first asked for."""
    made = {}

    def directory(heads, **changes):
        key = repr((heads, changes))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("sd3") / f"heads{heads}"
            write_sd3_transformer(made[key], num_attention_heads=heads, **changes)
        return made[key]

    return directory


def request(config, height=18, width=10, text=5, batch=1, seed=0):
    """Keyword arguments of one call: latents of height x width, four of them a token."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    return {
        "hidden_states": draw(batch, config.in_channels, height, width),
        "encoder_hidden_states": draw(batch, text, config.joint_attention_dim),
        "pooled_projections": draw(batch, config.pooled_projection_dim),
        "timestep": rng.uniform(0, 1000, size=batch).astype(np.float32),
    }


def on_ranks(directory, size, *requests, **options):
    """Each rank's outputs for the requests in turn."""

    def run(context):
        model = SD3Transformer.from_pretrained(directory, threads=1, parallel=context)
        return [model(**r) for r in requests]

    return ParallelContext.local(size, run, ulysses_degree=size, **options)


def assert_like_one_rank(directory, size, *requests):
    (expected,) = on_ranks(directory, 1, *requests)
    for outputs in on_ranks(directory, size, *requests):
        for mine, theirs in zip(outputs, expected, strict=True):
            assert np.isfinite(mine).all()
            assert np.abs(mine - theirs).max() <= TOLERANCE


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("changes", [{}, MEDIUM_35], ids=["3.0", "3.5 medium"])
def test_any_degree_equals_one_rank(models, changes, size):
    directory = models(7, **changes)
    config = SD3Transformer.read_config(directory)
    skipping = {**request(config), "skip_layers": [1]}
    assert_like_one_rank(directory, size, request(config), request(config, batch=3, text=9), skipping)


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 17, 97, 105])
def test_any_length_equals_one_rank(models, tokens):
    """One token on four ranks: three ranks own nothing."""
    directory = models(5, num_layers=2, dual_attention_layers=[0], pos_embed_max_size=105)
    config = SD3Transformer.read_config(directory)
    assert_like_one_rank(directory, 4, request(config, height=2, width=2 * tokens, text=1))


@pytest.mark.parametrize("text", [1, 5, 7, 8, 9, 77])
def test_any_text_length_equals_one_rank(models, text):
    directory = models(5, num_layers=2, dual_attention_layers=[0])
    config = SD3Transformer.read_config(directory)
    assert_like_one_rank(directory, 4, request(config, text=text))


@pytest.mark.parametrize("heads, size", [(2, 2), (30, 4), (24, 5), (38, 4)])
def test_uneven_heads_equal_one_rank(models, heads, size):
    directory = models(heads, num_layers=1, dual_attention_layers=[0], attention_head_dim=8)
    config = SD3Transformer.read_config(directory)
    assert_like_one_rank(directory, size, request(config))


@pytest.mark.parametrize("ops", ["fused", "generic"])
def test_ranks_exchange_what_the_schedule_says(models, ops):
    directory = models(7, **MEDIUM_35)
    config = SD3Transformer.read_config(directory)

    def run(context):
        model = SD3Transformer.from_pretrained(directory, threads=1, parallel=context)
        model(**request(config))
        before = context.group("ulysses").bytes_sent
        model(**request(config))
        parallel = context.config
        d = SD3Transformer.describe(
            config, batch=1, image_tokens=45, text_tokens=5, compute_dtype="f32", parallel=parallel
        )
        predicted = plan(d.nodes, d.collectives, d.outputs, degree=parallel.ulysses_degree).bytes_sent
        return context.group("ulysses").bytes_sent - before, predicted

    for sent, predicted in ParallelContext.local(3, run, ulysses_degree=3, ops=ops):
        assert sent == predicted > 0


def test_all_of_attention_is_fused():
    """Without rotation and norms of q and k as well."""
    for qk_norm in (None, "rms_norm"):
        config = SD3Config(num_layers=2, qk_norm=qk_norm, dual_attention_layers=(0,))
        parallel = ParallelConfig.for_plan(ulysses_degree=4)
        d = SD3Transformer.describe(
            config, batch=1, image_tokens=1024, text_tokens=333, compute_dtype="f32", parallel=parallel
        )
        assert not d.fusion_reasons
        kinds = [collective.kind for collective in d.collectives]
        assert kinds == ["all_to_all"] * 6 + ["all_gather"]  # two exchanges an attention, and the output


def test_steps_of_one_shape_build_nothing(models):
    directory = models(4)
    config = SD3Transformer.read_config(directory)
    model = SD3Transformer.from_pretrained(directory, threads=1)
    first = model(**request(config, 8, 6))
    before = (COUNTERS.graphs_built, COUNTERS.graphs_compiled, COUNTERS.buffers_allocated)
    assert model(**request(config, 6, 8)).shape == (1, 4, 6, 8)  # as many tokens
    np.testing.assert_array_equal(model(**request(config, 8, 6)), first)
    assert (COUNTERS.graphs_built, COUNTERS.graphs_compiled, COUNTERS.buffers_allocated) == before


def test_steps_take_what_was_computed_for_all_of_them(models):
    directory = models(4, dual_attention_layers=[0])
    config = SD3Transformer.read_config(directory)
    model = SD3Transformer.from_pretrained(directory, threads=1)
    r = request(config, batch=2)
    timesteps = np.linspace(1000, 3, 5, dtype=np.float32)[:, None] + np.arange(2, dtype=np.float32)
    vectors = model.modulations(timesteps, r["pooled_projections"])
    # 12 vectors a block, 3 more where attention is dual, 4 fewer in the last, 2 of the output
    assert vectors.shape == (5, 2, (12 * 3 + 3 - 4 + 2) * config.dim)
    for timestep, of_step in zip(timesteps, vectors, strict=True):
        velocity = model.velocity(r["hidden_states"], r["encoder_hidden_states"], of_step)
        np.testing.assert_allclose(velocity, model(**{**r, "timestep": timestep}), rtol=0, atol=TOLERANCE)


def test_skipped_layers_in_any_order_are_the_same_graph(models):
    directory = models(4)
    r = request(SD3Transformer.read_config(directory))
    model = SD3Transformer.from_pretrained(directory, threads=1)
    whole, skipped = model(**r), model(**r, skip_layers=[1, 0])
    assert np.abs(whole - skipped).max() > 1e-3
    compiled = COUNTERS.graphs_compiled
    np.testing.assert_array_equal(model(**r, skip_layers=(0, 1, 1)), skipped)
    assert COUNTERS.graphs_compiled == compiled


def test_positions_stand_in_the_middle_of_the_square():
    """Of 5 x 5 positions 2 x 3: one row above, one column to the left."""
    np.testing.assert_array_equal(positions_in_square(4, 6, 5), [6, 7, 8, 11, 12, 13])
    np.testing.assert_array_equal(positions_in_square(10, 10, 5), np.arange(25))


# bad input


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"timestep": np.zeros(2, np.float32)}, r"one value per batch item \(1\), got 2"),
        ({"pooled_projections": np.zeros((1, 3), np.float32)}, "input 'pooled' must be"),
        ({"hidden_states": np.zeros((1, 4, 6, 5), np.float32)}, "latents are 5 in width; legal are multiples of 2"),
        ({"hidden_states": np.zeros((1, 4, 26, 6), np.float32)}, "latents are 26 in height; .* up to 24"),
        ({"skip_layers": [0, 3]}, r"layers \[3\] cannot be left out; the model has layers 0 to 2"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_named(models, changes, words):
    directory = models(4)
    config = SD3Transformer.read_config(directory)
    with pytest.raises(ValueError, match=words):
        SD3Transformer.from_pretrained(directory, threads=1)(**{**request(config), **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"patch_size": 4}, "patch_size is 4; supported: 2"),
        ({"caption_projection_dim": 1000}, "caption_projection_dim is 1000, but .* = 1152 channels"),
        ({"qk_norm": "layer_norm"}, "qk_norm is 'layer_norm'"),
        ({"pos_embed_max_size": None}, "pos_embed_max_size is None"),
        ({"dual_attention_layers": [0, 18]}, r"names \[18\]; the model has 18 layers"),
    ],
)
def test_impossible_configurations_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        SD3Config.from_dict(changes)


def test_more_ranks_than_heads_are_refused():
    parallel = ParallelConfig(ulysses_degree=8, world_size=8, local_world_size=8)
    with pytest.raises(ValueError, match="legal degrees: 1 to 7"):
        SD3Transformer.check_parallel(
            SD3Config(num_attention_heads=7, attention_head_dim=64, caption_projection_dim=448), parallel
        )
