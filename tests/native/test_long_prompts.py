"""512 tokens of text: what is cut is said, padding is attended to, and a picture comes of it."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from tiny import write_flux_pipeline
from tiny_sd3 import write_sd3_pipeline

from edgedit.config import ParallelConfig
from edgedit.pipelines.pipeline import Pipeline

LONGEST = 512
SMALL = {"height": 16, "width": 16, "num_inference_steps": 1, "seed": 1, "guidance_scale": 1.0}
FAMILIES = {"flux": (write_flux_pipeline, 0, "tokenizer_2"), "sd3": (write_sd3_pipeline, 16, "tokenizer_3")}


def words(count):
    return " ".join(["cat", "red", "apple", "on", "table"][i % 5] for i in range(count))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """A pipeline, how many tokens stand before those of T5, and T5's tokenizer."""
    write, begin, tokenizer = FAMILIES[request.param]
    directory = write(tmp_path_factory.mktemp("long") / request.param, seed=4)
    with Pipeline.from_pretrained(directory, threads=1, parallel=ParallelConfig()) as pipeline:
        yield pipeline, begin, getattr(pipeline, tokenizer)


@pytest.fixture(autouse=True)
def _quiet_about_clip():
    """Of these texts CLIP takes 16 tokens."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*cut to 16;")
        yield


def encoded(family, prompt, length=LONGEST):
    """T5's part of the sequence, [length, C]."""
    pipeline, begin, _ = family
    sequence = pipeline.encode(prompt, length).sequence[0]
    assert len(sequence) == begin + length
    return sequence[begin:]


def test_a_prompt_beyond_512_tokens_is_cut_and_both_numbers_are_said(family):
    _, _, tokenizer = family
    prompt = words(700)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, (count,) = tokenizer.encode(prompt, LONGEST)
    assert count > LONGEST
    with pytest.warns(UserWarning, match=f"a prompt of {count} tokens is cut to {LONGEST}; lost: ") as said:
        encoded(family, prompt)
    lost = re.search("lost: '(.*)'", str(said[-1].message))[1]
    assert prompt.endswith(lost)


def test_every_token_of_a_prompt_that_fits_counts(family):
    """The last of 512 tokens but the end is another: its state changes, and so do those of all others."""
    _, _, tokenizer = family
    fitting = max(n for n in range(280, LONGEST, 2) if tokenizer.encode(words(n), 2 * LONGEST)[1][0] <= LONGEST)
    prompt = words(fitting)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*cut to {LONGEST}")
        first, other = encoded(family, prompt), encoded(family, prompt.rsplit(" ", 1)[0] + " dog")
    assert (np.abs(first - other).max(axis=1) > 0).all()


def test_padding_is_attended_to(family):
    """As the published pipelines have it: T5 gets no mask, so that its states depend on the length padded to."""
    pipeline, _, tokenizer = family
    t5 = getattr(pipeline, "text_encoder_3", None) or pipeline.text_encoder_2
    ids, (count,) = tokenizer.encode("a cat", LONGEST)
    np.testing.assert_array_equal(encoded(family, "a cat"), t5(ids)[0])
    masked = t5(ids, (np.arange(LONGEST) < count)[None].astype(np.int64))[0]
    assert np.abs(masked[:count] - t5(ids)[0, :count]).max() > 1e-3
    short = encoded(family, "a cat", 64)
    assert np.abs(short[:count] - t5(ids)[0, :count]).max() > 1e-3


def test_a_picture_is_drawn_of_512_tokens(family):
    pipeline, _, _ = family
    latents = [pipeline(words(n), **SMALL, max_sequence_length=LONGEST).latents for n in (300, 301)]
    assert np.isfinite(latents).all()
    assert np.abs(latents[0] - latents[1]).max() > 0


@pytest.mark.parametrize("length", [0, 513])
def test_lengths_beyond_the_limits_are_refused(family, length):
    with pytest.raises(ValueError, match=f"max_sequence_length is {length}; legal are 1 to 512"):
        family[0]("a cat", **SMALL, max_sequence_length=length)
