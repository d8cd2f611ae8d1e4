"""The FLUX transformer on ranks that are threads: equal to one rank, whatever the shape."""

import ctypes

import numpy as np
import pytest
from kernel_layers import F16_TOLERANCE
from tiny import write_flux_transformer

from edgedit.config import ParallelConfig
from edgedit.errors import CheckpointError
from edgedit.graph.counters import COUNTERS
from edgedit.graph.planner import plan
from edgedit.models.flux import FluxConfig, FluxTransformer
from edgedit.models.flux_inputs import positions
from edgedit.parallel.context import ParallelContext

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories of random models by head count, written when first asked for."""
    made = {}

    def directory(heads, **changes):
        key = repr((heads, changes))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("flux") / f"heads{heads}"
            write_flux_transformer(made[key], num_attention_heads=heads, **changes)
        return made[key]

    return directory


def request(config, height=9, width=5, text=5, batch=1, seed=0):
    """Keyword arguments of one call: height x width image tokens, `text` text tokens."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    rows, columns = np.indices((height, width)).reshape(2, -1)
    return {
        "hidden_states": draw(batch, height * width, config.in_channels),
        "encoder_hidden_states": draw(batch, text, config.joint_attention_dim),
        "pooled_projections": draw(batch, config.pooled_projection_dim),
        "timestep": rng.uniform(size=batch).astype(np.float32),
        "img_ids": np.stack([np.zeros_like(rows), rows, columns], 1),
        "txt_ids": np.zeros((text, 3)),
        "guidance": np.full(batch, 3.5, np.float32) if config.guidance_embeds else None,
    }


def on_ranks(directory, size, *requests, **options):
    """Each rank's outputs for the requests in turn."""

    def run(context):
        model = FluxTransformer.from_pretrained(directory, threads=1, parallel=context)
        return [model(**r) for r in requests]

    return ParallelContext.local(size, run, ulysses_degree=size, **options)


def assert_like_one_rank(directory, size, *requests):
    (expected,) = on_ranks(directory, 1, *requests)
    for outputs in on_ranks(directory, size, *requests):
        for mine, theirs in zip(outputs, expected, strict=True):
            assert np.isfinite(mine).all()
            assert np.abs(mine - theirs).max() <= TOLERANCE


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("heads", [7, 12])
def test_any_degree_equals_one_rank(models, heads, size):
    directory = models(heads, guidance_embeds=True)
    config = FluxTransformer.read_config(directory)
    assert_like_one_rank(directory, size, request(config), request(config, batch=3, text=9))


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 17, 97, 105])
def test_any_length_equals_one_rank(models, tokens):
    """One token on four ranks: three ranks own nothing."""
    directory = models(12)
    config = FluxTransformer.read_config(directory)
    assert_like_one_rank(directory, 4, request(config, height=1, width=tokens, text=1))


@pytest.mark.parametrize("side", [63, 83])
def test_pictures_of_1008_and_1328_pixels_equal_one_rank(models, side):
    directory = models(12, num_layers=1, num_single_layers=1)
    config = FluxTransformer.read_config(directory)
    assert_like_one_rank(directory, 4, request(config, side, side, text=9))


@pytest.mark.parametrize("text", [1, 5, 7, 8, 9, 77])
def test_any_text_length_equals_one_rank(models, text):
    directory = models(12)
    config = FluxTransformer.read_config(directory)
    assert_like_one_rank(directory, 4, request(config, text=text))


@pytest.mark.parametrize("heads, size", [(2, 2), (30, 4), (24, 5)])
def test_uneven_heads_equal_one_rank(models, heads, size):
    directory = models(heads, num_layers=1, num_single_layers=1)
    config = FluxTransformer.read_config(directory)
    assert_like_one_rank(directory, size, request(config))


@pytest.mark.parametrize("heads, size, legal", [(2, 4, "1 to 2"), (7, 8, "1 to 7")])
def test_more_ranks_than_heads_are_refused_before_weights_are_read(models, heads, size, legal, monkeypatch):
    directory = models(heads)
    monkeypatch.setattr(
        "edgedit.models.model.load", lambda *_, **__: pytest.fail("the weights were to be read")
    )
    parallel = ParallelConfig(ulysses_degree=size, world_size=size, local_world_size=size)
    with pytest.raises(ValueError, match=rf"ulysses_degree {size} .*legal degrees: {legal}.*alternatives"):
        FluxTransformer.check_parallel(FluxTransformer.read_config(directory), parallel)
    with pytest.raises(ValueError, match=legal):
        ParallelContext.local(
            size,
            lambda context: FluxTransformer.from_pretrained(directory, parallel=context),
            ulysses_degree=size,
        )


def test_shapes_may_change_from_call_to_call(models):
    """64x64, 96x64 and 64x64 again, with 5, 9 and 5 text tokens; a second call of a shape builds nothing."""
    directory = models(12)
    config = FluxTransformer.read_config(directory)
    small, large = request(config, 4, 4, 5), request(config, 6, 4, 9)
    assert_like_one_rank(directory, 3, small, large, small)
    model = FluxTransformer.from_pretrained(directory, threads=1)
    first = model(**small)
    model(**large)
    before = (COUNTERS.graphs_built, COUNTERS.graphs_compiled, COUNTERS.buffers_allocated)
    np.testing.assert_array_equal(model(**small), first)
    np.testing.assert_array_equal(model(**large).shape, large["hidden_states"].shape)
    assert (COUNTERS.graphs_built, COUNTERS.graphs_compiled, COUNTERS.buffers_allocated) == before


@pytest.mark.parametrize("size", [2, 3])
def test_one_token_of_any_rank_changes_the_outputs_of_every_rank(models, size):
    directory = models(7, num_layers=1, num_single_layers=1)
    config = FluxTransformer.read_config(directory)
    base = request(config, height=2, width=size, text=size)
    variants = []
    for rank in range(size):
        for stream in ("hidden_states", "encoder_hidden_states"):
            changed = {**base, stream: base[stream].copy()}
            changed[stream][:, rank * base[stream].shape[1] // size] += 1
            variants.append(changed)
    outputs = on_ranks(directory, size, base, *variants)[0]
    for changed in outputs[1:]:
        assert (np.abs(changed - outputs[0]).max(axis=(0, 2)) > 1e-6).all()


def test_ranks_exchange_what_the_schedule_says(models):
    directory = models(12)
    config = FluxTransformer.read_config(directory)

    def run(context):
        model = FluxTransformer.from_pretrained(directory, threads=1, parallel=context)
        model(**request(config))
        before = context.group("ulysses").bytes_sent
        model(**request(config))
        parallel = context.config
        d = FluxTransformer.describe(
            config, batch=1, image_tokens=45, text_tokens=5, compute_dtype="f32", parallel=parallel
        )
        predicted = plan(d.nodes, d.collectives, d.outputs, degree=parallel.ulysses_degree).bytes_sent
        return context.group("ulysses").bytes_sent - before, predicted

    for sent, predicted in ParallelContext.local(3, run, ulysses_degree=3):
        assert sent == predicted > 0


def test_one_token_more_costs_hardly_more():
    """4097 tokens against 4096: less than 10 % more operations on the busiest rank, and more bytes by as little."""

    def cost(tokens):
        parallel = ParallelConfig.for_plan(ulysses_degree=4)
        d = FluxTransformer.describe(
            FluxConfig(num_layers=1, num_single_layers=1),
            batch=1,
            image_tokens=tokens,
            text_tokens=512,
            compute_dtype="f32",
            parallel=parallel,
        )
        schedule = plan(d.nodes, d.collectives, d.outputs, degree=4)
        return np.array([schedule.flops, schedule.bytes_sent, schedule.peak_nbytes])

    assert (cost(4097) < 1.01 * cost(4096)).all()


@pytest.mark.parametrize("dtype, quantised_compute", [("f32", "exact"), ("q8_0", "exact"), ("q8_0", "int8")])
def test_the_description_needs_no_weights_and_matches_the_loaded_model(models, dtype, quantised_compute):
    directory = models(7, guidance_embeds=True)
    config = FluxTransformer.read_config(directory)
    words = {"compute_dtype": dtype, "quantised_compute": quantised_compute, "parallel": ParallelConfig()}
    model = FluxTransformer.from_pretrained(directory, threads=1, **words)
    model(**request(config))
    described = [
        FluxTransformer.describe_modulations(config, rows=1, **words),
        FluxTransformer.describe(config, batch=1, image_tokens=45, text_tokens=5, **words),
    ]
    executors = model._executors.values()
    planned = [plan(d.nodes, d.collectives, d.outputs) for d in described]
    assert planned == [executor.schedule for executor in executors]
    for d in described:
        weights = sum(p.tensor.nbytes for _, p in model.network.named_parameters())
        assert sum(d.weight_nbytes.values()) == weights
        assert d.supports_guidance


@pytest.mark.parametrize("compute_dtype, error", [("f16", F16_TOLERANCE), ("bf16", 3e-2), ("q8_0", 5e-2)])
def test_narrow_weights_stay_close(models, compute_dtype, error):
    directory = models(4, attention_head_dim=32, axes_dims_rope=[8, 12, 12])
    config = FluxTransformer.read_config(directory)
    exact = FluxTransformer.from_pretrained(directory, threads=1)(**request(config))
    narrow = FluxTransformer.from_pretrained(directory, compute_dtype, threads=1)
    result = narrow(**request(config))
    assert 0 < np.linalg.norm(result - exact) / np.linalg.norm(exact) < error
    assert narrow.weights.nbytes < 0.6 * sum(4 * np.prod(p.shape) for _, p in narrow.network.named_parameters())


# modulations ahead of the steps


@pytest.mark.parametrize("ops", ["fused", "generic"])
@pytest.mark.parametrize("guidance_embeds", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_steps_take_what_was_computed_for_all_of_them(models, batch, guidance_embeds, ops):
    directory = models(4, guidance_embeds=guidance_embeds)
    config = FluxTransformer.read_config(directory)
    model = FluxTransformer.from_pretrained(directory, threads=1, parallel=ParallelConfig(ops=ops))
    r = request(config, batch=batch)
    timesteps = np.linspace(1, 0, 5, dtype=np.float32)[:, None] + 0.01 * np.arange(batch, dtype=np.float32)
    vectors = model.modulations(timesteps, r["pooled_projections"], r["guidance"])
    channels = (12 * config.num_layers + 3 * config.num_single_layers + 2) * config.dim
    assert vectors.shape == (5, batch, channels)
    names = ("hidden_states", "encoder_hidden_states", "img_ids", "txt_ids")
    for timestep, of_step in zip(timesteps, vectors, strict=True):
        alone = model.modulations(timestep[None], r["pooled_projections"], r["guidance"])[0]
        np.testing.assert_allclose(of_step, alone, rtol=0, atol=TOLERANCE)
        velocity = model.velocity(**{name: r[name] for name in names}, modulations=alone)
        np.testing.assert_array_equal(velocity, model(**{**r, "timestep": timestep}))


def test_vectors_stand_in_the_order_of_the_blocks(models):
    """Other weights of one modulation change its own vectors and no others."""
    directory = models(4)
    config = FluxTransformer.read_config(directory)
    model = FluxTransformer.from_pretrained(directory, threads=1)
    arguments = np.full((1, 1), 0.3, np.float32), request(config)["pooled_projections"]
    before = model.modulations(*arguments)[0, 0]
    begin = 0
    for name, modulation in model.network.modulations():
        address = modulation.linear.bias.tensor.pointer.contents.data
        bias = np.ctypeslib.as_array((ctypes.c_float * modulation.channels).from_address(address))
        original = bias.copy()
        bias += 1
        changed = np.flatnonzero(model.modulations(*arguments)[0, 0] != before)
        bias[:] = original
        np.testing.assert_array_equal(changed, np.arange(begin, begin + modulation.channels), err_msg=name)
        begin += modulation.channels
    assert begin == len(before)


# bad input


def test_guidance_is_asked_for_or_refused(models):
    for guidance in (True, False):
        directory = models(7, guidance_embeds=guidance)
        config = FluxTransformer.read_config(directory)
        wrong = {**request(config), "guidance": None if guidance else np.ones(1, np.float32)}
        with pytest.raises(ValueError, match="needs guidance" if guidance else "takes no guidance"):
            FluxTransformer.from_pretrained(directory, threads=1)(**wrong)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"timestep": np.zeros(2, np.float32)}, r"one value per batch item \(1\), got 2"),
        ({"img_ids": np.zeros((44, 3))}, r"img_ids must be \[tokens, axes\] = \[45, 3\], got \[44, 3\]"),
        ({"pooled_projections": np.zeros((1, 3), np.float32)}, "input 'pooled' must be"),
        ({"txt_ids": np.full((5, 3), 0.5)}, "txt_ids must be whole numbers"),
    ],
)
def test_wrong_inputs_are_named(models, changes, words):
    directory = models(7)
    config = FluxTransformer.read_config(directory)
    with pytest.raises(ValueError, match=words):
        FluxTransformer.from_pretrained(directory, threads=1)(**{**request(config), **changes})


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"axes_dims_rope": [4, 6, 8], "attention_head_dim": 16}, r"\[4, 6, 8\] must be even and add up"),
        ({"axes_dims_rope": [5, 5, 6], "attention_head_dim": 16}, "must be even"),
        ({"patch_size": 2}, "patch_size is 2"),
    ],
)
def test_impossible_configurations_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        FluxConfig.from_dict(changes)


def test_a_directory_without_config_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        FluxTransformer.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="no JSON"):
        FluxTransformer.from_pretrained(tmp_path)


def test_positions_are_transposed():
    np.testing.assert_array_equal(positions(np.array([[0, 1], [2, 3]]), 2, 2, "ids"), [[0, 2], [1, 3]])
