"""``edgedit doctor``: it reports, and fails where something required is broken."""

import json
import sys

import pytest

from edgedit import cli
from edgedit.commands import doctor
from edgedit.launcher import Launch
from edgedit.topology import Cpu, Machine


def test_everything_needed_is_found_here(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == []
    assert report["ggml"]["version"] == "0.15.3"
    assert report["ggml"]["build"]["LLAMAFILE"] in "01"
    assert report["threads"] >= 1
    assert "NUMA node" in report["topology"]
    assert "one rank on this host" in report["binding"]
    assert report["ranks"] == 1
    assert report["shared_memory"] in ("unnamed", "named")


def test_the_text_names_what_it_found(capsys):
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in ("LLAMAFILE=", "threads", "launcher", "in-graph", "gpus", "embedded"):
        assert word in text


def test_ranks_are_told_their_cores_and_a_wrong_word_is_a_problem(monkeypatch):
    monkeypatch.setattr(doctor.host, "machine", lambda: Machine(tuple(Cpu(n // 2, n, n) for n in range(4))))
    monkeypatch.setattr(doctor.host, "bound_by_launcher", lambda: False)
    launch = Launch("mpich", 1, 2, 1, 2)
    assert doctor.examine(launch)["binding"] == "auto: cores 2-3 of 0-3, NUMA node 1"
    monkeypatch.setenv("EDGEDIT_BIND", "socket")
    assert "EDGEDIT_BIND: bind is 'socket'" in doctor.examine(launch)["problems"][0]


def test_mpi_is_optional_for_one_rank_and_required_for_two(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    alone, two = doctor.examine(Launch("none")), doctor.examine(Launch("mpich", 0, 2, 0, 2))
    assert not alone["problems"]
    assert "mpi4py is not installed" in alone["hints"][-1]
    assert "mpi4py is not installed" in two["problems"][0]


def test_a_launcher_of_another_mpi_is_a_problem(monkeypatch):
    found = {"library": "X 1", "flavour": "X", "mpi4py": "4", "ranks": 1}
    monkeypatch.setattr(doctor, "describe_mpi", lambda join: found)
    (problem,) = doctor.examine(Launch("openmpi", 0, 4, 0, 4))["problems"]
    assert "started 4 ranks but MPI sees 1" in problem


def test_a_broken_ggml_is_a_problem(monkeypatch):
    monkeypatch.setitem(sys.modules, "edgedit.graph._ggml", None)
    assert "ggml" in doctor.examine(Launch("none"))["problems"][0]


@pytest.mark.parametrize("why", ["missing", "failing"])
def test_absent_gpus_are_explained(monkeypatch, why):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None if why == "missing" else "/bin/false")
    if why == "failing":
        done = type("Done", (), {"returncode": 9, "stderr": "driver mismatch", "stdout": ""})
        monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: done)
    gpus = doctor.examine(Launch("none"))["gpus"]
    assert gpus["devices"] == []
    assert ("no NVIDIA driver" if why == "missing" else "driver mismatch") in gpus["why"]
