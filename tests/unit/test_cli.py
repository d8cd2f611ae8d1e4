"""The command line up to the point where weights would be read: what is refused, and how."""

import subprocess
import sys

import pytest

import edgedit
from edgedit import cli, embedded


def refused(capsys, *words):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("edgedit.parallel.context", "edgedit.pipelines.pipeline", "ggml"):
            patch.setitem(sys.modules, name, None)  # importing it from here on fails: no work has started
        status = cli.main(["generate", *words])
    captured = capsys.readouterr()
    assert status == cli.BAD_INPUT
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert captured.err.startswith("edgedit: error: ")
    return captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no prompt"),
        (["-p", "a", "--steps", "0"], "--steps is 0"),
        (["-p", "a", "--num-images", "0"], "--num-images is 0"),
        (["-p", "a", "--vae-tiling", "0"], "--vae-tiling is 0"),
        (["-p", "a", "--vae-ranks", "0"], "--vae-ranks is 0"),
        (["-p", "a", "--text-encoder-ranks", "0"], "--text-encoder-ranks is 0"),
        (["-p", "a", "--kv-gather", "0"], "--kv-gather is 0"),
        (["-p", "a", "--width", "100"], "nearest: 96 or 112"),
        (["-p", "a", "-o", "a.gif"], "must end in .png"),
        (["-p", "a", "--latents-out", "a.txt"], "must end in .npy"),
        (["-p", "a", "--threads", "0"], "--threads is 0"),
        (["-p", "a", "--model", "/nowhere"], "'/nowhere'"),
        (["-p", "a", "--cfg", "2"], "cfg 2"),
        (["-p", "a", "--cfg", "2", "--ulysses", "3"], "= 6 ranks"),
        (["-p", "a", "--ulysses", "0"], "--ulysses is 0"),
        (["-p", "a", "--sp", "5"], "ring 5 = 5 ranks, but the world has 1"),
        (["-p", "a", "--sp", "0"], "--sp is 0; at least 1"),
        (["-p", "a", "--sp", "2", "--ring", "2"], "--ring"),
        (["-p", "a", "--backend", "carrier-pigeon"], "carrier-pigeon"),
        (["-p", "a", "--timeout", "0"], "--timeout is 0"),
        (["-p", "a", "--true-cfg-scale", "nan"], "--true-cfg-scale is nan"),
        (["-p", "a", "-p", "b", "-p", "c", *(["--negative-prompt", "x"] * 2)], "2 negative prompts for 3"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_work_starts(capsys, words, message):
    assert message in refused(capsys, *words)


def test_more_ulysses_ranks_than_heads_are_refused_with_the_legal_degrees(capsys, monkeypatch):
    for name, value in (
        ("PMI_RANK", "0"),
        ("PMI_SIZE", "6"),
        ("MPI_LOCALRANKID", "0"),
        ("MPI_LOCALNRANKS", "6"),
    ):
        monkeypatch.setenv(name, value)
    message = refused(capsys, "-p", "a", "--ulysses", "6")
    assert "1 to 4" in message
    assert "alternatives" in message
    assert "--cfg 2 --ulysses 3" in message


def test_bad_input_is_said_once_per_host(capsys, monkeypatch):
    for name, value in (
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "2"),
        ("MPI_LOCALRANKID", "1"),
        ("MPI_LOCALNRANKS", "2"),
    ):
        monkeypatch.setenv(name, value)
    assert cli.main(["generate", "-p", "a", "--steps", "0", "--cfg", "2"]) == cli.BAD_INPUT
    assert capsys.readouterr().err == ""


def test_a_wrong_flag_is_bad_input_without_a_usage_dump(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["generate", "--colour", "red"])
    assert stopped.value.code == cli.BAD_INPUT
    assert capsys.readouterr().err.count("\n") == 1


def test_list_prompts_shows_what_was_taught(capsys):
    assert cli.main(["generate", "--list-prompts"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == embedded.prompts()
    assert {"red apple", "cat", "castle"} <= set(lines)


def test_version_and_help_need_no_native_code():
    code = (
        "import sys; from edgedit import cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit as stopped: assert stopped.code == 0, stopped.code\n"
        "loaded = {'ggml', 'mpi4py', 'numpy', 'torch'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    for words in (["--version"], ["--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        )
        assert edgedit.__version__ in done.stdout or "generate" in done.stdout
