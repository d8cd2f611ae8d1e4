"""Which steps of a request are conditioned together, and that every step gets its own."""

import numpy as np
import pytest

from edgedit.pipelines.modulations_ahead import MAX_ROWS, ModulationsAhead, steps_at_once


class PretendTransformer:
    """Gives timesteps back as modulations, and counts the rows of each call."""

    def __init__(self):
        self.rows = []

    def modulations(self, timesteps, pooled_projections, guidance):
        self.rows.append(timesteps.size)
        return np.stack([timesteps, timesteps + guidance + pooled_projections[:, 0]], axis=2)


@pytest.mark.parametrize(
    ("num_steps", "batch", "rows"),
    [(1, 1, [1]), (28, 1, [28]), (MAX_ROWS, 1, [MAX_ROWS]), (65, 1, [33] * 2), (28, 4, [56] * 2), (50, 3, [51] * 3),
     (3, 100, [100] * 3)],
)  # fmt: skip
def test_each_step_gets_its_own_whatever_is_computed_at_once(num_steps, batch, rows):
    transformer = PretendTransformer()
    timesteps = np.arange(num_steps * batch, dtype=np.float32).reshape(num_steps, batch)
    pooled, guidance = np.full((batch, 2), 0.25, np.float32), np.full(batch, 0.5, np.float32)
    ahead = ModulationsAhead(transformer, timesteps, pooled, guidance)
    for step in range(num_steps):
        expected = np.stack([timesteps[step], timesteps[step] + 0.75], axis=1)
        for _ in range(2):
            np.testing.assert_array_equal(ahead.of(step), expected)
    assert transformer.rows == rows
    assert steps_at_once(num_steps, batch) * batch == rows[0]
    assert max(rows) <= max(MAX_ROWS, batch)
