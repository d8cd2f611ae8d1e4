"""Latents as tokens: the layout, and that nothing is lost."""

import numpy as np
import pytest

from edgedit.models.patches import patchify, unpatchify
from edgedit.pipelines.latents import image_ids


@pytest.mark.parametrize("shape", [(1, 16, 8, 8), (2, 3, 4, 6), (3, 1, 2, 2), (1, 4, 10, 18)])
def test_unpatchify_inverts_patchify(shape):
    latents = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    tokens = patchify(latents)
    assert tokens.shape == (shape[0], shape[2] * shape[3] // 4, shape[1] * 4)
    np.testing.assert_array_equal(unpatchify(tokens, *shape[2:]), latents)


def test_a_token_is_a_patch_channel_by_channel():
    latents = np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype(np.float32)
    tokens = patchify(latents)
    for row in range(2):
        for column in range(3):
            patch = latents[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            np.testing.assert_array_equal(tokens[:, 3 * row + column], patch.reshape(2, 12))


def test_image_ids_are_rows_and_columns_in_token_order():
    ids = image_ids(4, 6)
    expected = [(0, row, column) for row in range(2) for column in range(3)]
    np.testing.assert_array_equal(ids, np.array(expected, np.float32))
