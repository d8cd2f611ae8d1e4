"""``edgedit generate`` under mpiexec: any number of ranks draws what one rank draws."""

import json
import os
import re
import signal
import time

import numpy as np
import pytest
from launch import check_ok, finish, flavour, mpirun, process_of_rank, start
from PIL import Image
from tiny import write_flux_pipeline
from tiny_sd3 import write_sd3_pipeline

from edgedit import cli

EMBEDDED = ["-p", "a red apple", "--steps", "3", "--seed", "5", "--threads", "1"]
GUIDED = [*EMBEDDED, "--negative-prompt", "two blue dogs on a table", "--true-cfg-scale", "2.5"]


class Drawing:
    """Files and JSON of one ``generate`` command."""

    def __init__(self, folder, name):
        self.picture, self.latents_file = folder / f"{name}.png", folder / f"{name}.npy"
        self.report = None

    def flags(self):
        return ["-o", str(self.picture), "--latents-out", str(self.latents_file), "--json"]

    @property
    def latents(self):
        return np.load(self.latents_file)

    @property
    def pixels(self):
        with Image.open(self.picture) as picture:
            return np.asarray(picture).astype(int)


def on_ranks(folder, num_ranks, *flags):
    drawing = Drawing(folder, f"ranks{num_ranks}")
    done = mpirun(num_ranks, "edgedit", "generate", *flags, *drawing.flags())
    drawing.report = json.loads(check_ok(done))  # one object on stdout: only one rank printed
    drawing.notes = done.stderr
    return drawing


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Draws on one rank in this process; each set of flags once."""
    folder, kept = tmp_path_factory.mktemp("alone"), {}

    def draw(*flags):
        if flags not in kept:
            drawing = Drawing(folder, str(len(kept)))
            assert cli.main(["generate", *flags, *drawing.flags(), "--quiet"]) == 0
            kept[flags] = drawing
        return kept[flags]

    return draw


@pytest.fixture(scope="module")
def seven_heads(tmp_path_factory):
    return write_flux_pipeline(tmp_path_factory.mktemp("seven") / "flux", heads=7, t5_length=5, guidance=True)


@pytest.fixture(scope="module")
def twelve_heads(tmp_path_factory):
    return write_flux_pipeline(
        tmp_path_factory.mktemp("twelve") / "flux", heads=12, t5_length=5, dtype="BF16"
    )


@pytest.fixture
def assert_as_planned(capsys):
    """The bytes that every rank sent, and the schedule, are those that ``plan`` foretells without running."""

    def check(drawing, *flags):
        capsys.readouterr()
        assert cli.main(["plan", *map(str, flags), "--json"]) == 0
        planned = json.loads(capsys.readouterr().out)
        for key in ("bytes_sent", "schedule_digest", "axes", "world_size"):
            assert drawing.report[key] == planned[key], key
        working = planned["world_size"] > 1
        assert all(sent > 0 for sent in planned["bytes_sent"]) == working, "a degree is accepted and ignored"

    return check


def assert_same_picture(drawing, expected):
    latents = drawing.latents
    assert np.isfinite(latents).all()
    assert latents.shape == expected.latents.shape
    assert latents.dtype == np.float32
    np.testing.assert_allclose(latents, expected.latents, rtol=0, atol=1e-5)
    assert np.abs(drawing.pixels - expected.pixels).max() <= 1


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_ulysses_draws_what_one_rank_draws(tmp_path, alone, assert_as_planned, num_ranks):
    drawing = on_ranks(tmp_path, num_ranks, *EMBEDDED, "--ulysses", num_ranks)
    assert_same_picture(drawing, alone(*EMBEDDED))
    assert_as_planned(drawing, "--steps", "3", "--ulysses", num_ranks)
    assert drawing.report["world_size"] == num_ranks
    assert drawing.report["axes"] == {
        **dict.fromkeys(["tp", "ring", "kv_gather", "cfg", "dp"], 1),
        "ulysses": num_ranks,
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"ranks{num_ranks}.npy",
        f"ranks{num_ranks}.png",
    ]


@pytest.mark.parametrize(("tp", "ulysses", "backend"), [(3, 1, "mpi"), (2, 2, "shm")])
def test_shared_weights_draw_what_one_rank_draws(tmp_path, alone, assert_as_planned, tp, ulysses, backend):
    flags = ["--tp", tp, "--ulysses", ulysses]
    drawing = on_ranks(tmp_path, tp * ulysses, *EMBEDDED, *flags, "--backend", backend)
    assert_same_picture(drawing, alone(*EMBEDDED))
    assert_as_planned(drawing, "--steps", "3", *flags)
    assert (drawing.report["backend"], drawing.report["comm"]) == (backend, "in-graph")


@pytest.mark.parametrize(
    ("num_ranks", "flags", "backend", "axes"),
    [
        (4, ["--ring", 2, "--ulysses", 2], "mpi", {"ring": 2, "ulysses": 2}),
        (2, ["--sp", 2], "shm", {"kv_gather": 2}),
    ],
)
def test_rings_and_gathers_draw_what_one_rank_draws(
    tmp_path, alone, assert_as_planned, num_ranks, flags, backend, axes
):
    drawing = on_ranks(tmp_path, num_ranks, *EMBEDDED, *flags, "--backend", backend)
    assert_same_picture(drawing, alone(*EMBEDDED))
    assert_as_planned(drawing, "--steps", "3", *flags)
    assert {axis: n for axis, n in drawing.report["axes"].items() if n > 1} == axes
    assert (drawing.report["backend"], drawing.report["comm"]) == (backend, "in-graph")


@pytest.mark.parametrize("backend", ["shm", "mpi"])
def test_weights_that_ranks_keep_shares_of_draw_what_one_rank_draws(
    tmp_path, alone, assert_as_planned, backend
):
    flags = ["--ulysses", "3", "--shard-weights"]
    drawing = on_ranks(tmp_path, 3, *EMBEDDED, *flags, "--backend", backend)
    assert_same_picture(drawing, alone(*EMBEDDED))
    assert_as_planned(drawing, "--steps", "3", *flags)
    assert (drawing.report["backend"], drawing.report["comm"]) == (backend, "in-graph")


@pytest.mark.parametrize("ulysses", [1, 2, 3])
def test_guidance_over_ranks_draws_what_one_rank_draws(tmp_path, alone, assert_as_planned, ulysses):
    drawing = on_ranks(tmp_path, 2 * ulysses, *GUIDED, "--cfg", "2", "--ulysses", ulysses)
    expected = alone(*GUIDED)
    assert_same_picture(drawing, expected)
    assert_as_planned(drawing, "--steps", "3", "--true-cfg-scale", "2.5", "--cfg", "2", "--ulysses", ulysses)
    if ulysses == 1:
        np.testing.assert_array_equal(drawing.latents, expected.latents)
    assert np.abs(expected.latents - alone(*EMBEDDED).latents).max() > 1e-3


@pytest.mark.parametrize(
    ("num_ranks", "model"), [(5, "seven_heads"), (7, "seven_heads"), (7, "twelve_heads")]
)
def test_lengths_and_heads_that_divide_by_nothing(
    request, tmp_path, alone, assert_as_planned, num_ranks, model
):
    directory = request.getfixturevalue(model)
    # 5 x 9 image tokens, 5 text tokens, two prompts
    shape = ["--model", str(directory), "--height", "20", "--width", "36", "--num-images", "2"]
    shape += ["--steps", "2", "--max-sequence-length", "5"]
    flags = [*shape, "-p", "a cat", "--seed", "1", "--threads", "1"]
    expected = alone(*flags)
    drawing = on_ranks(tmp_path, num_ranks, *flags, "--ulysses", num_ranks)
    assert_as_planned(drawing, *shape, "--ulysses", num_ranks)
    assert drawing.latents.shape == (2, 4, 10, 18)
    np.testing.assert_allclose(drawing.latents, expected.latents, rtol=0, atol=1e-5)
    assert [path.rsplit("-", 1)[1] for path in drawing.report["outputs"]] == ["0.png", "1.png"]


def test_stable_diffusion_3_on_four_ranks_draws_what_one_rank_draws(tmp_path, alone, assert_as_planned):
    model = write_sd3_pipeline(tmp_path / "model", heads=3, dual=(0,), qk_norm="rms_norm")
    shape = ["--model", str(model), "--height", "20", "--width", "36", "--steps", "3"]
    flags = [*shape, "-p", "a cat", "--seed", "1", "--threads", "1"]
    layout = ["--cfg", "2", "--ulysses", "2"]
    drawing = on_ranks(tmp_path, 4, *flags, *layout)
    assert_same_picture(drawing, alone(*flags))
    assert_as_planned(drawing, *shape, *layout)
    skipping = [*flags, "--skip-guidance-layers", "1", "--skip-layer-guidance-stop", "0.9"]
    assert_same_picture(on_ranks(tmp_path, 4, *skipping, *layout), alone(*skipping))


def test_one_seed_is_drawn_printed_and_shared(tmp_path):
    flags = ["-p", "a cat", "--steps", "1", "--threads", "1"]
    picture = tmp_path / "a.png"
    done = mpirun(2, "edgedit", "generate", *flags, "--cfg", "2", "-o", picture)
    seed, path = check_ok(done).splitlines()
    assert path == str(picture)
    with Image.open(picture) as first:
        stored = json.loads(first.text["edgedit"])
        pixels = np.asarray(first).astype(int)
    assert seed == f"seed {stored['seed']}"
    assert re.search(r"cfg 2: the request has one guidance branch, ranks 1 repeat others", done.stderr)
    again = Drawing(tmp_path, "again")
    assert cli.main(["generate", *flags, "--seed", str(stored["seed"]), *again.flags()]) == 0
    assert np.abs(again.pixels - pixels).max() <= 1


def test_bad_input_ends_every_rank_before_work_with_one_message(tmp_path):
    done = mpirun(
        2, "edgedit", "generate", "-p", "a cat", "--ulysses", "2", "-o", tmp_path / "missing" / "a.png"
    )
    assert done.returncode != 0
    assert done.stdout == ""
    assert "there is no directory" in done.stderr
    assert "Traceback" not in done.stderr
    done = mpirun(3, "edgedit", "generate", "-p", "a cat", "-o", tmp_path / "a.png")
    assert done.returncode != 0
    assert done.stderr.count("choose: ") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(flavour() != "mpich", reason="ranks are found by MPICH's environment variables")
def test_a_rank_killed_in_mid_step_ends_all_and_leaves_no_file(tmp_path):
    """Without the launcher's own clean-up: the other ranks end by themselves."""
    flags = [*EMBEDDED, "--steps", "100000", "--ulysses", "3", "-o", tmp_path / "a.png"]
    flags += ["--latents-out", tmp_path / "l.npy"]
    mark = str(os.getpid())
    launched = start(
        3, "edgedit", "generate", *flags, env={"EDGEDIT_MARK": mark}, mpiexec_args=["-disable-auto-cleanup"]
    )
    launched.stderr.readline()  # the bar of the steps, which is drawn after two seconds of them
    os.kill(process_of_rank(1, mark), signal.SIGKILL)
    killed_s = time.monotonic()
    done = finish(launched, timeout=60)
    assert time.monotonic() - killed_s < 10
    assert done.returncode != 0
    assert list(tmp_path.iterdir()) == []
    assert all(process_of_rank(rank, mark) is None for rank in range(3))
