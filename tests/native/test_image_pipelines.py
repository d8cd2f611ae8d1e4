"""Pipelines that begin with a picture, in one process: what it changes, and that ranks draw what one rank draws."""

import numpy as np
import pytest
from PIL.Image import fromarray
from tiny import write_flux_pipeline
from tiny_images import mask, picture, write_fill_pipeline, write_kontext_pipeline
from tiny_sd3 import write_sd3_pipeline

from edgedit.config import ParallelConfig
from edgedit.errors import EdgeditError
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline
from edgedit.sampling.noise import NoiseStream

CALL = {"num_inference_steps": 3, "height": 12, "width": 20, "seed": 3, "max_sequence_length": 7}
PICTURE, MASK = picture(20, 12), mask(20, 12)
SMALL = {"heads": 5, "num_layers": 1, "num_single_layers": 1}
GUIDED = {"negative_prompt": "two dogs", "true_cfg_scale": 3.0}
# name -> writer of a model and options of a call: 15 image tokens, those of a reference 4 x 3 more
MODELS = {
    "start": (write_flux_pipeline, SMALL, {"image": PICTURE, "strength": 0.6, **GUIDED}),
    "mask": (write_flux_pipeline, SMALL, {"image": PICTURE, "mask_image": MASK, "strength": 0.6, **GUIDED}),
    "reference": (
        write_kontext_pipeline, {**SMALL, "guidance": True},
        {"image": picture(17, 14), "resize_image": False, **GUIDED},
    ),
    "fill": (write_fill_pipeline, SMALL, {"image": PICTURE, "mask_image": MASK, **GUIDED}),
    "sd3": (write_sd3_pipeline, {"heads": 5, "num_layers": 2}, {"image": PICTURE, "strength": 0.6}),
    "sd3, mask": (write_sd3_pipeline, {"heads": 5, "num_layers": 2}, {"image": PICTURE, "mask_image": MASK}),
}  # fmt: skip
LAYOUTS = {
    "ulysses 3": {"ulysses_degree": 3},
    "cfg 2, ulysses 2": {"cfg_degree": 2, "ulysses_degree": 2},
    "dp 2": {"dp_degree": 2},
    "ring 2, tp 2, vae 2": {"ring_degree": 2, "tp_degree": 2, "vae_degree": 2},
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {name: writer(root / name, **options) for name, (writer, options, _) in MODELS.items()}


@pytest.fixture
def draw(directories):
    """Draws with a model on one rank."""
    opened = {}

    def call(name, prompt="a cat", **changes):
        if name not in opened:
            opened[name] = Pipeline.from_pretrained(directories[name], threads=1, parallel=ParallelConfig())
        return opened[name](prompt, **{**CALL, **MODELS[name][2], **changes})

    yield call
    for pipeline in opened.values():
        pipeline.close()


# layouts


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_ranks_draw_what_one_rank_draws(directories, draw, name, layout):
    degrees, prompts = LAYOUTS[layout], ["a cat", "a red apple"]

    def run(context):
        # only the first rank has pictures that count
        options = {**CALL, **MODELS[name][2]}
        if context.rank:
            options |= {key: "elsewhere.png" for key in ("image", "mask_image") if key in options}
        with Pipeline.from_pretrained(directories[name], threads=1, parallel=context) as pipeline:
            return pipeline(prompts, **options)

    expected = draw(name, prompts)
    size = int(np.prod([degree for axis, degree in degrees.items() if axis != "vae_degree"]))
    results = ParallelContext.local(size, run, **degrees)
    assert np.isfinite(expected.latents).all()
    for result in results:
        np.testing.assert_array_equal(result.latents, results[0].latents)
        limit = 1e-5 * np.abs(expected.latents).max()
        np.testing.assert_allclose(result.latents, expected.latents, rtol=0, atol=limit)
    for ours, alone in zip(results[0].images, expected.images, strict=True):
        assert np.abs(np.asarray(ours).astype(int) - np.asarray(alone)).max() <= 1


def test_rounds_of_a_batch_share_the_picture(draw):
    prompts = ["a cat", "a red apple", "two dogs"]
    for name in ("mask", "reference", "fill"):
        np.testing.assert_allclose(
            draw(name, prompts, batch_size=2).latents, draw(name, prompts).latents, rtol=0, atol=1e-5
        )


# what a picture changes


@pytest.mark.parametrize("name", MODELS)
def test_the_picture_reaches_what_is_drawn(draw, name):
    other = np.asarray(MODELS[name][2]["image"]).copy()
    other[-4:, :4] = 255 - other[-4:, :4]  # outside of the mask
    changed = draw(name, image=fromarray(other))
    assert np.abs(changed.latents - draw(name).latents).max() > 1e-4


def test_strength_says_how_many_steps_run(draw):
    steps = []
    draw("start", num_inference_steps=5, strength=0.5, callback=lambda *step: steps.append(step[:2]))
    assert steps == [(0, 3), (1, 3), (2, 3)]
    weak, strong = (draw("start", strength=strength).latents for strength in (0.3, 1.0))
    kept = draw("start", strength=0.01, num_inference_steps=100).latents
    assert np.abs(weak - kept).mean() < np.abs(strong - kept).mean()


def test_at_full_strength_the_picture_is_all_noise(draw):
    """Its noise is the second draw of the seed: the first is that of the encoded picture."""
    stream = NoiseStream(CALL["seed"])
    stream.randn((1, 4, 6, 10))
    plain = draw("start", image=None, strength=None, latents=stream.randn((1, 4, 6, 10)))
    np.testing.assert_array_equal(draw("start", strength=1.0).latents, plain.latents)


@pytest.mark.parametrize("name", ["mask", "sd3, mask"])
def test_outside_of_the_mask_the_picture_stays(draw, name):
    """However different the prompts, and bit for bit; inside it does not."""
    first, second = (draw(name, prompt).latents for prompt in ("a cat", "a red apple"))
    anew = (np.asarray(MASK) >= 128)[::2, ::2]
    np.testing.assert_array_equal(first[..., ~anew], second[..., ~anew])
    assert np.abs(first - second)[..., anew].min(axis=-1).max() > 1e-4


def test_given_latents_are_the_noise_over_the_picture(draw):
    noise = np.random.default_rng(0).standard_normal((1, 4, 6, 10), dtype=np.float32)
    first, second = (draw("start", latents=scale * noise).latents for scale in (1, -1))
    assert np.abs(first - second).max() > 1e-2


# influence of single tokens of a reference


def test_every_token_of_a_reference_influences_the_picture_on_every_rank(directories):
    """A rank that attended to its own tokens only would let some of them pass."""
    base = np.full((12, 16, 3), 90, np.uint8)
    pictures = [base]
    for row, column in ((0, 0), (1, 2), (2, 3)):
        pictures.append(base.copy())
        pictures[-1][4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = (240, 10, 120)

    def run(context):
        with Pipeline.from_pretrained(directories["reference"], threads=1, parallel=context) as pipeline:
            call = {**CALL, "num_inference_steps": 1, "resize_image": False}
            return [pipeline("a cat", image=fromarray(pixels), **call).latents for pixels in pictures]

    plain, *changed = ParallelContext.local(5, run, ulysses_degree=5)[0]
    for latents in changed:
        assert (np.abs(latents - plain).max(axis=1) > 0).all()


def test_a_reference_stands_on_a_position_axis_of_its_own(directories, monkeypatch):
    """At the places of the picture but 1 on the first axis, after the tokens of the picture."""
    with Pipeline.from_pretrained(directories["reference"], threads=1, parallel=ParallelConfig()) as pipeline:
        seen = []
        original = pipeline.transformer.velocity

        def velocity(**inputs):
            seen.append(inputs["img_ids"])
            return original(**inputs)

        monkeypatch.setattr(pipeline.transformer, "velocity", velocity)
        pipeline("a cat", image=picture(17, 14), resize_image=False, **{**CALL, "num_inference_steps": 1})
    own, reference = seen[0][:15], seen[0][15:]
    assert not own[:, 0].any()
    np.testing.assert_array_equal(reference, [(1, row, column) for row in range(3) for column in range(4)])


# refusals, before any work


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("start", {"image": "absent.png"}, "picture 'absent.png': there is no such file"),
        (
            "start",
            {"image": PICTURE, "mask_image": mask(24, 12)},
            "the mask has 24 x 12 px and the image 20 x 12",
        ),
        ("start", {"image": PICTURE, "strength": 1.5}, "strength is 1.5"),
        ("start", {"image": None, "mask_image": MASK}, "mask is given without image"),
        ("fill", {"image": None, "mask_image": None}, "it needs image and mask"),
        ("fill", {"image": PICTURE, "mask_image": None}, "mask is missing"),
        ("reference", {"mask_image": mask(17, 14)}, "takes no mask"),
        ("reference", {"strength": 0.5}, "takes no strength"),
        ("sd3", {"image": None, "strength": 0.5}, "strength is given without image"),
    ],
)
def test_pictures_that_a_model_cannot_use_are_refused(draw, name, options, message):
    with pytest.raises(ValueError, match=message):
        draw(name, **{"strength": None, **options})


def test_a_picture_that_is_encoded_to_nothing_finite_ends_all_ranks(directories, monkeypatch):
    def run(context):
        with Pipeline.from_pretrained(directories["start"], threads=1, parallel=context) as pipeline:
            if context.rank == 0:
                broken = np.full((1, 4, 6, 10), np.nan, np.float32)
                monkeypatch.setattr(pipeline.vae, "encode", lambda values: (broken, broken))
            return pipeline("a cat", image=PICTURE, **CALL)

    with pytest.raises(EdgeditError, match="the encoded picture holds values that are not finite"):
        ParallelContext.local(2, run, ulysses_degree=2)


def test_what_is_stretched_is_said(draw):
    assert draw("start").notes == []
    assert draw("start", image=picture(40, 12)).notes == ["the image of 40 x 12 px is stretched to 20 x 12"]


def test_a_model_whose_files_do_not_tell_reads_a_reference_when_told(directories, draw):
    """FLUX.1-Kontext's transformer is that of FLUX.1-dev."""
    call = {"image": picture(17, 14), "resize_image": False, "strength": None}
    told = draw("start", **call, image_as="reference").latents
    parts = {**call, "image": picture(17, 14, 1)}
    assert np.abs(told - draw("start", **parts, image_as="reference").latents).max() > 1e-4
    index = directories["start"] / "model_index.json"
    content = index.read_text()
    try:
        index.write_text(content.replace("FluxPipeline", "FluxKontextPipeline"))
        with Pipeline.from_pretrained(directories["start"], threads=1, parallel=ParallelConfig()) as kontext:
            own = kontext("a cat", **{**CALL, **GUIDED, **call}).latents
    finally:
        index.write_text(content)
    np.testing.assert_array_equal(told, own)


def test_a_kontext_model_draws_without_a_picture_too(draw):
    assert np.isfinite(draw("reference", image=None, resize_image=True).latents).all()


def test_a_request_without_the_picture_that_a_model_needs_is_refused_whoever_made_it(directories):
    with Pipeline.from_pretrained(directories["fill"], threads=1, parallel=ParallelConfig()) as pipeline:
        request = pipeline.settings.request("a cat", **CALL)
        with pytest.raises(ValueError, match="it needs image and mask"):
            pipeline.run(request)
