"""Which kernel family a choice means, for one rank and for several."""

from dataclasses import replace

import pytest

from edgedit import kernels
from edgedit.config import ParallelConfig
from edgedit.errors import EdgeditError
from edgedit.kernels import Offer, agreed, chosen

SERVER = Offer(("avx512", "avx2", "portable", "ggml"), "avx512")
DESKTOP = Offer(("avx2", "portable", "ggml"), "avx2")
OTHER = Offer(("portable", "ggml"), "ggml")  # no x86
TILES = Offer(("onednn", *SERVER.usable), "onednn", "oneDNN 3.2.0")


def on(monkeypatch, offer):
    monkeypatch.setattr(kernels.Offer, "here", classmethod(lambda cls, env=None: offer))


@pytest.mark.parametrize(
    ("offers", "family"),
    [
        ([SERVER, SERVER], "avx512"),
        ([SERVER, DESKTOP], "avx2"),
        ([DESKTOP, SERVER, OTHER], "ggml"),
        ([Offer(SERVER.usable, "portable"), SERVER], "portable"),
        ([TILES, TILES], "onednn"),
        ([TILES, SERVER], "avx512"),
        ([TILES, replace(TILES, onednn="oneDNN 3.3.0")], "avx512"),
    ],
)
def test_auto_is_the_slowest_that_a_rank_would_take_alone(offers, family):
    assert agreed("auto", offers) == family


def test_a_family_by_name_is_taken_where_all_ranks_can_run_it():
    assert agreed("portable", [SERVER, DESKTOP, OTHER]) == "portable"
    assert agreed("ggml", [SERVER, OTHER]) == "ggml"


def test_a_rank_that_cannot_run_a_family_is_named():
    with pytest.raises(EdgeditError, match=r"rank 1: kernels 'avx512'.*legal here: avx2, portable, ggml"):
        agreed("avx512", [SERVER, DESKTOP])


def test_onednn_by_name_must_be_there_and_the_same_on_all_ranks():
    assert agreed("onednn", [TILES, TILES]) == "onednn"
    with pytest.raises(EdgeditError, match="rank 0 has oneDNN 3.2.0, but rank 2 oneDNN 3.3.0"):
        agreed("onednn", [TILES, TILES, replace(TILES, onednn="oneDNN 3.3.0")])
    with pytest.raises(
        EdgeditError, match="rank 1: kernels 'onednn': there is no oneDNN to be used: not found"
    ):
        agreed("onednn", [TILES, replace(SERVER, onednn="not found")])


@pytest.mark.parametrize(("value", "reason"), [("avx512", "cannot run"), ("sse", "no such kernels")])
def test_what_the_environment_asks_for_is_checked_on_every_rank(value, reason):
    with pytest.raises(EdgeditError, match=rf"rank 2: EDGEDIT_KERNELS={value}: .*{reason}"):
        agreed("auto", [SERVER, SERVER, Offer(DESKTOP.usable, value)])
    assert agreed("avx2", [SERVER, Offer(DESKTOP.usable, value)]) == "avx2"  # not asked for


def test_one_rank_alone(monkeypatch):
    on(monkeypatch, DESKTOP)
    assert chosen("auto") == "avx2"
    assert chosen("ggml") == "ggml"
    with pytest.raises(ValueError, match="kernels 'avx512': this processor cannot run them"):
        chosen("avx512")


def test_an_offer_survives_its_way_between_ranks():
    assert agreed("auto", [Offer(**DESKTOP.as_json()), SERVER]) == "avx2"


def test_generic_operators_and_devices_mean_the_kernels_of_ggml():
    assert ParallelConfig().kernels == "auto"
    assert ParallelConfig(ops="generic").kernels == "ggml"
    with pytest.raises(ValueError, match="kernels is 'avx2', but ops generic builds stock nodes only"):
        ParallelConfig(ops="generic", kernels="avx2")
    with pytest.raises(
        ValueError, match="kernels is 'sse'; legal: auto, onednn, avx512, avx2, portable, ggml"
    ):
        ParallelConfig(kernels="sse")


def test_ranks_must_be_given_the_same_choice():
    assert "kernels = avx2" in ParallelConfig(kernels="avx2").shared_lines()
