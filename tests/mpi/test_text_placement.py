"""What text encoders on the first rank alone save the others, as the system sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch import check_ok, mpirun
from tiny import write_flux_pipeline

PROGRAM = Path(__file__).parent / "programs" / "text_placement.py"
T5_KIB = 2 * 3 * 32 * 65536 * 4 // 1024  # two layers of three matrices


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc/self/status")
def test_other_ranks_do_without_the_weights_of_encoders(tmp_path: Path) -> None:
    model = write_flux_pipeline(tmp_path / "flux", heads=2, t5_length=9, text_encoder_2={"d_ff": 65536})
    encoding, other = json.loads(check_ok(mpirun(2, PROGRAM, model, "first", timeout=60)).splitlines()[-1])
    assert encoding - other > 0.95 * T5_KIB
