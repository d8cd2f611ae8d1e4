"""What ``edgedit verify`` finds between ranks, which are threads here, and one rank alone."""

from __future__ import annotations

import argparse
import json
import math

import numpy as np
import pytest
from row_kernels import ROW_KERNELS
from tiny import write_flux_pipeline
from tiny_sd3 import write_sd3_pipeline

from edgedit import cli
from edgedit.commands import verify_report
from edgedit.commands.difference import Difference, psnr_db
from edgedit.commands.verification import Findings, Verification
from edgedit.graph._ggml import lib
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline
from edgedit.pipelines.settings import read_settings

PROMPTS = ["a red apple", "a castle"]


@pytest.fixture(scope="module")
def flux(tmp_path_factory):
    return write_flux_pipeline(tmp_path_factory.mktemp("flux") / "flux", heads=3, t5_length=5)


@pytest.fixture(scope="module")
def sd3(tmp_path_factory):
    return write_sd3_pipeline(tmp_path_factory.mktemp("sd3") / "sd3", num_layers=2, dual=(0,), with_t5=False)


def verified(
    model, world_size, *, step=0, fault=None, prompts=PROMPTS[:1], request=None, **layout
) -> Findings:
    """`fault` may do something to the pipeline of each rank of the layout."""
    settings = read_settings(model)
    asked = settings.request(prompts, num_inference_steps=2, seed=3, height=32, width=20, **(request or {}))

    def run(context):
        def open_pipeline(of):
            pipeline = Pipeline.from_pretrained(model, threads=1, parallel=of)
            if fault is not None and of is context:
                fault(pipeline, context.rank)
            return pipeline

        return Verification(context, open_pipeline, asked, step).run()

    findings, *others = ParallelContext.local(world_size, run, **layout)
    assert others == [None] * (world_size - 1)
    return findings


def change_bias(block):
    """A fault: rank 1 has another bias in a double block of FLUX."""

    def fault(pipeline, rank):
        if rank == 1:
            weight = pipeline.transformer.network.transformer_blocks[block].ff.net[2].bias.tensor
            values = np.full(weight.shape, 0.01, np.float32)
            lib.ggml_backend_tensor_set(weight.pointer, values.ctypes.data, 0, values.nbytes)

    return fault


@pytest.fixture(scope="module")
def faulty(flux):
    """Of two ranks, one of which has a fault in the second block."""
    return verified(flux, 2, fault=change_bias(1), ulysses_degree=2)


def test_flux_on_ranks_that_share_tokens(flux):
    findings = verified(flux, 2, ulysses_degree=2)
    assert len(findings.steps) == 2
    names = [
        "transformer_blocks.0",
        "transformer_blocks.1",
        "single_transformer_blocks.0",
        "single_transformer_blocks.1",
    ]
    found = [(block.block, block.stream) for block in findings.blocks]
    assert found == [*((name, stream) for name in names for stream in ("txt", "img")), ("velocity", "img")]
    assert findings.is_within(1e-5)
    assert findings.first_beyond(1e-5) is None
    assert findings.psnr_db > 60
    assert findings.wire is None


def test_every_branch_is_compared_wherever_it_ran(sd3):
    for layout in ({"cfg_degree": 2, "ulysses_degree": 2}, {"ulysses_degree": 4}):
        findings = verified(sd3, 4, step=1, **layout)
        assert [block.branch for block in findings.blocks] == [0] * 5 + [1] * 5
        assert findings.is_within(1e-5)


def test_a_fault_in_one_block_of_one_rank_is_found_there(faulty):
    first = faulty.first_beyond(1e-5)
    assert (first.block, first.stream, first.branch) == ("transformer_blocks.1", "img", 0)
    assert not faulty.is_within(1e-5)
    assert not faulty.steps[0].is_within(1e-5)


def test_three_branches_on_two_ranks_and_pictures_on_replicas(sd3):
    """Rank 0 holds branches 0 and 2 of the first picture; the second one is drawn elsewhere, and a replica idles."""
    request = {"skip_guidance_layers": [0], "skip_layer_guidance_stop": 0.9}
    layout = {"cfg_degree": 2, "dp_degree": 3, "kernels": ROW_KERNELS}
    findings = verified(sd3, 6, step=1, prompts=PROMPTS, request=request, **layout)
    assert [block.branch for block in findings.blocks] == [0] * 5 + [1] * 5 + [2] * 3
    assert findings.is_within(0.0)


def test_a_replica_that_differs_is_found(flux):
    findings = verified(flux, 2, prompts=PROMPTS, fault=change_bias(1), dp_degree=2)
    assert findings.first_beyond(1e-5).block == "transformer_blocks.1"
    assert not findings.steps[-1].is_within(1e-5)


def test_a_branch_that_differs_is_named(flux):
    guided = {"negative_prompt": "two dogs", "true_cfg_scale": 3.0}
    findings = verified(flux, 2, fault=change_bias(0), request=guided, cfg_degree=2)
    assert {b.branch for b in findings.blocks if not b.difference.is_within(1e-5)} == {1}


def test_ranks_that_repeat_others_are_told(flux):
    (note,) = verified(flux, 2, cfg_degree=2).notes
    assert note.startswith("cfg 2: the request has one guidance branch, ranks 1 repeat others")


def test_the_error_of_the_wire_is_the_worst_of_all_branches(flux):
    """With cfg 2 each rank runs one of the two branches that a rank runs in turn otherwise."""
    guided = {"negative_prompt": "two dogs", "true_cfg_scale": 3.0}
    layout = {"ulysses_degree": 2, "wire_dtype": "f16", "request": guided}
    one_by_one = verified(flux, 2, **layout).wire
    assert verified(flux, 4, cfg_degree=2, **layout).wire == one_by_one


def test_the_error_of_the_wire_is_told_apart(flux):
    findings = verified(flux, 2, ulysses_degree=2, wire_dtype="f16")
    assert 1e-6 < findings.wire.relative < 1e-2
    assert findings.steps[-1].relative == pytest.approx(findings.wire.relative, rel=20)


def test_differences_are_norms_over_norms():
    difference = Difference.of(np.float32([3, 4, 1]), np.float32([3, 0, 1]))
    assert difference.relative == pytest.approx(4 / math.sqrt(10))
    assert difference.largest == 4
    assert Difference.of(np.zeros(2), np.zeros(2)) == Difference(0.0, 0.0)
    assert not Difference.of(np.float32([np.nan]), np.float32([1])).is_within(1e9)
    assert Difference.of(np.ones(1), np.zeros(1)).relative == math.inf


def test_psnr():
    black, grey = np.zeros((4, 4, 3), np.uint8), np.full((4, 4, 3), 51, np.uint8)
    assert psnr_db([grey], [black]) == pytest.approx(20 * math.log10(5))
    assert psnr_db([grey], [grey]) == math.inf


def test_the_report_is_json_and_text(faulty):
    config = ParallelContext.local(2, lambda context: context.config)[0]
    args = argparse.Namespace(model="m", dtype="f32", quantised_compute="exact", tolerance=None, block_step=1)
    report = verify_report.report(args, config, faulty, ["a note"])
    assert json.loads(json.dumps(report)) == report
    assert (report["tolerance"], report["passed"]) == (1e-4, False)
    assert report["first_block_beyond_tolerance"]["block"] == "transformer_blocks.1"
    text = verify_report.as_text(report)
    assert "first block that differs by more than 0.0001: transformer_blocks.1, img, branch 0" in text
    assert text.splitlines()[-2:] == ["failed: a difference is above the tolerance of 0.0001", "note: a note"]
    lenient = verify_report.report(argparse.Namespace(**{**vars(args), "tolerance": 10.0}), config, faulty)
    assert lenient["passed"] and "passed" in verify_report.as_text(lenient)


def test_one_rank_has_nothing_to_compare(capsys):
    assert cli.main(["verify"]) == 2
    assert "mpirun -n 2 edgedit verify" in capsys.readouterr().err


def test_weights_that_the_ranks_cannot_share_are_refused_before_they_are_read(monkeypatch, capsys):
    launch = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
    for name, value in launch.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("edgedit.weights.loader.load", None)
    assert cli.main(["verify", "--dp", "2", "--shard-weights"]) == 2
    assert "one picture gives some ranks more than others" in capsys.readouterr().err
