"""Encoded prompts of 512 tokens against diffusers' pipelines: none of them masks padding."""

import numpy as np
import pytest
from relative_error import relative_error
from tiny import write_flux_pipeline
from tiny_sd3 import write_sd3_pipeline

from edgedit.config import ParallelConfig
from edgedit.pipelines.pipeline import Pipeline

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

LONGEST = 512
FAMILIES = {
    "FluxPipeline": (write_flux_pipeline, {"prompt_2": None}, (0, 1)),
    "StableDiffusion3Pipeline": (
        write_sd3_pipeline,
        {"prompt_2": None, "prompt_3": None, "do_classifier_free_guidance": False},
        (0, 2),
    ),
}
PROMPTS = {
    "mostly padding": "a red apple",
    "almost full": " ".join(["two small cats"] * 60),
    "cut": " ".join(["a red apple on a white table"] * 120),
}


@pytest.fixture(scope="module", params=FAMILIES)
def pipelines(request, tmp_path_factory):
    """Ours and diffusers', with what `encode_prompt` takes and where in its answer sequence and pooled vector are."""
    write, options, places = FAMILIES[request.param]
    directory = write(tmp_path_factory.mktemp("long") / "model", seed=6)
    theirs = getattr(diffusers, request.param).from_pretrained(directory, torch_dtype=torch.float32)
    with Pipeline.from_pretrained(directory, threads=1, parallel=ParallelConfig()) as ours:
        yield ours, theirs, options, places


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.filterwarnings("ignore")
def test_encoded_prompts_agree(pipelines, prompt):
    ours, theirs, options, (sequence, pooled) = pipelines
    with torch.no_grad():
        expected = theirs.encode_prompt(prompt=PROMPTS[prompt], max_sequence_length=LONGEST, **options)
    text = ours.encode(PROMPTS[prompt], LONGEST)
    assert text.sequence.shape == tuple(expected[sequence].shape)
    assert relative_error(text.sequence, expected[sequence]) < 1e-5
    assert relative_error(text.pooled, expected[pooled]) < 1e-5
    np.testing.assert_allclose(text.sequence, expected[sequence].numpy(), atol=1e-3)
