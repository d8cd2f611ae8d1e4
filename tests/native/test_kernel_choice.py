"""How kernels are chosen on this machine, and what the choice does to a graph."""

import numpy as np
import pytest
from graph_runner import random

from edgedit import _native, kernels
from edgedit.commands import doctor
from edgedit.config import ParallelConfig
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.registry import OPERATORS
from edgedit.launcher import Launch
from edgedit.parallel.context import ParallelContext


def test_the_environment_says_what_auto_means(monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, "portable")
    assert ParallelContext().config.kernels == "portable"
    assert GraphBuilder("test").kernels == "portable"
    monkeypatch.setenv(kernels.VARIABLE, "auto")
    assert ParallelContext().config.kernels == _native.kernels.best()
    assert ParallelContext(ParallelConfig(kernels="ggml")).config.kernels == "ggml"


def test_an_unknown_family_in_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv(kernels.VARIABLE, "sse")
    with pytest.raises(ValueError, match="EDGEDIT_KERNELS=sse: no such kernels; legal here: "):
        ParallelContext()
    assert any("EDGEDIT_KERNELS=sse" in problem for problem in doctor.examine(Launch("none"))["problems"])


def test_doctor_lists_the_families():
    found = doctor.examine(Launch("none"))["kernels"]
    assert found["auto"] in found["usable"] and {"portable", "ggml"} <= set(found["usable"])


def test_threads_as_ranks_share_one_choice():
    families = ParallelContext.local(2, lambda context: context.config.kernels, kernels="portable")
    assert families == ["portable", "portable"]


@pytest.mark.parametrize("choices", [{"ops": "generic"}, {"kernels": "ggml"}])
def test_without_kernels_no_product_is_an_operator_of_ours(choices):
    b = GraphBuilder("test", compute_dtype="bf16", **choices)
    q = b.input("q", (1, 4, 2, 8))
    weight = b.constant("weight", random(16, 16))
    b.linear(b.attention(q, q, q), weight, activation="gelu")
    b.conv2d(b.input("x", (1, 2, 4, 4)), b.constant("filter", random(3, 2, 3, 3)))
    assert not {node.op for node in b.nodes} & set(OPERATORS) and not b.fusion_reasons
    assert b.activations == "f32"


def test_a_weight_that_is_not_packed_falls_back_with_a_reason():
    b = GraphBuilder("test", kernels="portable")
    b.linear(b.input("x", (4, 16)), b.constant("weight", random(16, 16)))
    assert b.fusion_reasons == {"linear": "a weight that is not packed for kernels portable"}


def test_activations_are_bf16_where_they_are_multiplied_as_such():
    assert GraphBuilder("test", kernels="portable").activations == "f32"
    assert GraphBuilder("test", kernels="portable", compute_dtype="q8_0").activations == "bf16"
    for family in _native.kernels.families():
        expected = "bf16" if _native.kernels.has_bf16(family) else "f32"
        assert GraphBuilder("test", kernels=family, compute_dtype="bf16").activations == expected


def test_unknown_words_are_refused():
    with pytest.raises(ValueError, match="quantised_compute is 'int4'; legal: exact, int8"):
        GraphBuilder("test", quantised_compute="int4")
    with pytest.raises(ValueError, match="kernels 'sse': no such kernels"):
        GraphBuilder("test", kernels="sse")


def test_only_whole_panels_are_packed():
    family = "portable"
    panel = _native.kernels.panel(family)
    rows = np.zeros((2 * panel, 8), np.float32)
    with pytest.raises(ValueError, match="no whole panels"):
        _native.kernels.pack(family, 0, 2 * panel, 8, 0, panel - 1, rows.ctypes.data, 0)
