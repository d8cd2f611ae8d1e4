"""``edgedit verify`` under mpiexec: its report, and its exit status on every rank."""

import json

from launch import check_ok, mpirun

VERIFY = ["verify", "--steps", "2", "--threads", "1"]


def test_a_layout_that_equals_one_rank_passes():
    report = json.loads(check_ok(mpirun(2, "edgedit", *VERIFY, "--ulysses", "2", "--json")))
    assert report["passed"]
    assert (report["axes"]["ulysses"], report["world_size"], report["tolerance"]) == (2, 2, 1e-4)
    assert len(report["steps"]) == 2
    assert len(report["blocks"]) > 6
    assert report["first_block_beyond_tolerance"] is None


def test_a_difference_above_the_tolerance_is_a_failure():
    flags = ["--cfg", "2", "--ulysses", "2", "--negative-prompt", "red", "--true-cfg-scale", "2"]
    done = mpirun(4, "edgedit", *VERIFY, *flags, "--wire-dtype", "f16", "--tolerance", "1e-9")
    assert done.returncode == 1
    assert "failed: a difference is above the tolerance of 1e-09" in done.stdout
    assert "of which the wire's f16 alone" in done.stdout
    assert "first block that differs: transformer_blocks.0" in done.stdout
    assert not done.stderr
