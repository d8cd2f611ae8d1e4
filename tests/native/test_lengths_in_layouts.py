"""Whole transformers in every way of sharing tokens and weights: any length, one after another, equals one rank, and
each token reaches all."""

import numpy as np
import pytest
from tiny import write_flux_transformer
from tiny_sd3 import write_sd3_transformer

from edgedit.models import random_flux, random_sd3
from edgedit.models.flux import FluxTransformer
from edgedit.models.sd3 import SD3Transformer
from edgedit.parallel.context import ParallelContext

RANKS = 4
HEADS = 5
FAMILIES = {
    "flux": (FluxTransformer, random_flux, write_flux_transformer, {}),
    "sd3": (SD3Transformer, random_sd3, write_sd3_transformer, {"pos_embed_max_size": 105}),
}
TOKEN_AXIS = {"flux": (0, 2), "sd3": (0, 1)}  # what an output has besides tokens
LAYOUTS = {
    "ulysses": {"ulysses_degree": 4},
    "ring": {"ring_degree": 4},
    "kv_gather": {"kv_gather_degree": 4},
    "ulysses and ring": {"ring_degree": 2, "ulysses_degree": 2},
    "ulysses and kv_gather": {"kv_gather_degree": 2, "ulysses_degree": 2},
    "tp": {"tp_degree": 4},
    "tp and ring": {"tp_degree": 2, "ring_degree": 2},
    "sharded": {"ulysses_degree": 2, "ring_degree": 2, "weight_residency": "sharded"},
}
# tokens of the image and of the text: of one token, three ranks own nothing; the first comes again at the end
LENGTHS = [(1, 5), (17, 9), (1, 5)]
ALL_LENGTHS = [(1, 1), (2, 5), (3, 7), (7, 8), (17, 9), (97, 5), (105, 77), (1, 1)]

layouts = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(scope="module", params=["flux", pytest.param("sd3", marks=pytest.mark.slow)])
def model(request, tmp_path_factory):
    """Family, directory, and what a function of the model returns on every rank of a layout."""
    family = request.param
    network, _, write, options = FAMILIES[family]
    directory = tmp_path_factory.mktemp(family)
    write(directory, num_attention_heads=HEADS, **options)

    def on_ranks(requests, ranks=1, **degrees):
        def run(context):
            ranked = network.from_pretrained(directory, threads=1, parallel=context)
            try:
                return [ranked(**call) for call in requests]
            finally:
                ranked.close()

        return ParallelContext.local(ranks, run, **degrees)

    return family, directory, on_ranks


def request_of(model, *shape):
    family, directory, _ = model
    network, random, _, _ = FAMILIES[family]
    return random.request_of(network.read_config(directory), *shape)


@layouts
@pytest.mark.parametrize("lengths", [LENGTHS, pytest.param(ALL_LENGTHS, marks=pytest.mark.slow)], ids=["some", "all"])
def test_any_lengths_one_after_another_equal_one_rank(model, layout, lengths):
    _, _, on_ranks = model
    requests = [request_of(model, 1, *length) for length in lengths]
    expected = [on_ranks([call])[0][0] for call in requests]  # each with a model of its own
    outputs = on_ranks(requests, RANKS, **LAYOUTS[layout])
    tolerance = 5e-5 if "ring" in layout else 1e-5
    for of_rank in outputs:
        for mine, first, theirs in zip(of_rank, outputs[0], expected, strict=True):
            assert np.isfinite(mine).all()
            np.testing.assert_array_equal(mine, first)
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())
        np.testing.assert_array_equal(of_rank[-1], of_rank[0])


@layouts
def test_one_token_of_any_rank_changes_the_outputs_of_every_rank(model, layout):
    family, _, on_ranks = model
    base = request_of(model, 1, RANKS, RANKS)
    requests = [base]
    for rank in range(RANKS):
        text, image = base["encoder_hidden_states"].copy(), base["hidden_states"].copy()
        text[:, rank] += 1
        if family == "flux":
            image[:, rank] += 1
        else:
            image[..., 2 * rank] += 1
        requests += [{**base, "encoder_hidden_states": text}, {**base, "hidden_states": image}]
    for outputs in on_ranks(requests, RANKS, **LAYOUTS[layout]):
        for changed in outputs[1:]:
            assert (np.abs(changed - outputs[0]).max(TOKEN_AXIS[family]) > 1e-6).all()
