"""Keys, values and results that travel as q8_0: what the rounding alone does, and the bytes that it saves."""

import joint_attention
import numpy as np
import pytest
from joint_attention import Problem
from tiny import write_flux_pipeline
from tiny_sd3 import write_sd3_pipeline

from edgedit.config import ParallelConfig
from edgedit.graph.planner import plan
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline

HEAD_DIM = 64
DEGREES = {
    "ulysses": {"ulysses": 3},
    "ring": {"ring": 3},
    "kv_gather": {"kv_gather": 3},
    "ulysses and ring": {"ring": 2, "ulysses": 2},
    "ulysses and kv_gather": {"kv_gather": 2, "ulysses": 2},
}


def rounded(values):
    """As the format says: of 32 values the largest is 127, the scale is f16."""
    blocks = values.reshape(-1, 32)
    largest = np.abs(blocks).max(1, keepdims=True)
    codes = np.rint(blocks * (np.float32(127) / largest))
    scales = (largest / np.float32(127)).astype(np.float16).astype(np.float32)
    return (codes * scales).reshape(values.shape)


@pytest.fixture
def problem(monkeypatch):
    monkeypatch.setattr(joint_attention, "HEAD_DIM", HEAD_DIM)
    return Problem((5, 12), heads=4, batch=2)


@pytest.mark.parametrize("degrees", DEGREES.values(), ids=DEGREES)
def test_attention_is_that_of_rounded_values(problem, degrees):
    outputs = problem.run(degrees, wire_dtype="q8_0")
    first = 0 if "ulysses" in degrees else 1  # queries travel with Ulysses only
    for planes in problem.whole:
        planes[first:] = [rounded(plane) for plane in planes[first:]]
    for mine, expected in zip(outputs, problem.expected(), strict=True):
        if "ulysses" not in degrees:
            np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-5)
            continue
        # the results travel too
        blocks = np.abs(expected).reshape(-1, 32)
        step = blocks.max(1, keepdims=True) / 127
        error = np.abs(mine.reshape(-1, 32) - expected.reshape(-1, 32))
        assert (error <= 0.5 * step + 127 * step / 2**11 + 1e-5).all()
        assert (error > 0.2 * step).any()


@pytest.mark.parametrize("degrees", DEGREES.values(), ids=DEGREES)
def test_it_sends_a_quarter_of_f32(problem, degrees):
    size = int(np.prod(list(degrees.values())))
    sent = {}
    for wire in ("f32", "q8_0"):

        def run(context):
            b, _, _ = problem.graph(context)
            of_attention = [c for c in b.collectives if "gather" not in c.name or "kv_gather" in c.name]
            plan(b.nodes, b.collectives, [tensor.node for tensor in b.outputs.values()], degree=size)
            nbytes = sum(c.bytes_sent for c in of_attention)
            b.release()
            return nbytes

        options = {f"{axis}_degree": degree for axis, degree in degrees.items()}
        sent[wire] = ParallelContext.local(size, run, wire_dtype=wire, **options)
    assert all(128 * few == 34 * many > 0 for few, many in zip(sent["q8_0"], sent["f32"], strict=True))


@pytest.mark.parametrize(
    "degrees", [{"ulysses_degree": 2}, {"ring_degree": 2}, {"kv_gather_degree": 2}], ids=str
)
def test_a_pipeline_draws_nearly_the_same(tmp_path, degrees):
    call = {"num_inference_steps": 2, "height": 12, "width": 20, "seed": 3}
    directory = write_flux_pipeline(tmp_path / "flux", heads=2, head_dim=32, axes=(8, 12, 12), t5_length=9)

    def latents(ranks, **options):
        def run(context):
            return Pipeline.from_pretrained(directory, threads=1, parallel=context)("a cat", **call).latents

        return ParallelContext.local(ranks, run, **options)[0]

    whole, rounded_ = latents(1, ulysses_degree=1), latents(2, wire_dtype="q8_0", **degrees)
    error = np.abs(rounded_ - whole).max() / np.abs(whole).max()
    assert 1e-5 < error < 2e-2


@pytest.mark.parametrize("write", [write_flux_pipeline, write_sd3_pipeline])
def test_heads_that_blocks_do_not_fill_are_refused_before_weights_are_read(tmp_path, write):
    directory = write(tmp_path / "model", heads=2)
    for weights in directory.glob("*/*.safetensors"):
        weights.unlink()

    def run(context):
        Pipeline.from_pretrained(directory, threads=1, parallel=context)

    with pytest.raises(
        ValueError, match="wire_dtype is q8_0, whose blocks of 32 values do not fill the 16 channels"
    ):
        ParallelContext.local(2, run, ulysses_degree=2, wire_dtype="q8_0")


def test_devices_do_not_pack_blocks(monkeypatch):
    monkeypatch.setattr("edgedit.config.find_spec", lambda name: True)
    with pytest.raises(ValueError, match="wire_dtype q8_0 is packed on the host, but backend nccl"):
        ParallelConfig.for_plan(ulysses_degree=2, backend="nccl", wire_dtype="q8_0")
