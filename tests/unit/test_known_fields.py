"""Entries of configs: what a field takes, and what is refused with its name."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from edgedit.errors import CheckpointError
from edgedit.models.config import known_fields
from edgedit.models.tokenizer_config import read_tokenizer_config


@dataclass(frozen=True)
class Config:
    num_layers: int = 2
    width: int = 64
    eos_token_id: int = 1
    eps: float = 1e-5
    gated: bool = False
    activation: str = "gelu"
    norm: str | None = None
    axes: tuple[int, ...] = (1,)
    kinds: tuple[str, ...] = ()


def test_known_entries_are_kept_and_others_dropped():
    values = {"num_layers": 0, "axes": [2, 3], "norm": None, "eps": 1, "torch_dtype": "float16", "eos_token_id": 0}
    assert known_fields(Config, values) == {"num_layers": 0, "axes": (2, 3), "norm": None, "eps": 1, "eos_token_id": 0}
    assert Config(**known_fields(Config, {"kinds": ["a"], "gated": True})).kinds == ("a",)


REFUSED = [
    ({"num_layers": "2"}, "num_layers is '2'; it must be an integer from 0 to 1024"),
    ({"num_layers": True}, "num_layers is True"),
    ({"num_layers": 10**9}, "num_layers is 1000000000; it must be an integer from 0 to 1024"),
    ({"num_layers": 2.0}, "num_layers is 2.0"),
    ({"width": 0}, "width is 0; it must be an integer from 1 to 16777216"),
    ({"width": None}, "width is None"),
    ({"width": 10**400}, "width is 1000"),
    ({"eos_token_id": [1, 2]}, r"eos_token_id is \[1, 2\]"),
    ({"eps": float("nan")}, "eps is nan; it must be a number"),
    ({"eps": 10**400}, "eps is 1000"),
    ({"eps": "small"}, "eps is 'small'"),
    ({"gated": 1}, "gated is 1; it must be of type bool"),
    ({"activation": None}, "activation is None; it must be of type str"),
    ({"norm": 3}, "norm is 3; it must be of type str"),
    ({"axes": 3}, "axes is 3; it must be a list"),
    ({"axes": [1, None]}, "axes is None"),
    ({"axes": [1] * 300}, "it must be a list of at most 256"),
    ({"kinds": [["a"]]}, r"kinds is \['a'\]"),
    ([1], r"a config is a JSON object, not \[1\]"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_other_entries_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        known_fields(Config, values)


TOKENIZER_CONFIGS = [
    ({"eos_token": 3}, "eos_token is 3; it must be a string"),
    ({"eos_token": {"content": None}}, "eos_token is"),
    ({"pad_token": {"content": "<pad>", "lstrip": "no"}}, "pad_token is"),
    ({"bos_token": "\ud800"}, "bos_token is"),
    ({"extra_special_tokens": 7}, "extra_special_tokens must be a list of tokens"),
    ({"additional_special_tokens": [None]}, "additional_special_tokens must be a list of tokens"),
    ({"added_tokens_decoder": {"x": "a"}}, "added_tokens_decoder must lead from ids to tokens"),
    ({"added_tokens_decoder": []}, "added_tokens_decoder must lead"),
    ({"model_max_length": "77"}, "model_max_length is '77'"),
    ({"padding_side": "top"}, "padding_side is 'top'; legal: 'left', 'right'"),
    ({"extra_ids": -1}, "extra_ids is -1"),
    ({"extra_ids": 10**9}, "extra_ids is 1000000000"),
    ([], "is not a JSON object"),
]


@pytest.mark.parametrize(("content", "message"), TOKENIZER_CONFIGS)
def test_tokenizer_configs_are_refused_and_named(tmp_path, content, message):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message) as error:
        read_tokenizer_config(tmp_path)
    assert "tokenizer_config.json" in str(error.value)


def test_published_spellings_of_tokenizer_configs_are_taken(tmp_path):
    config = {
        "model_max_length": 1e30, "eos_token": {"content": "</s>", "special": True}, "pad_token": "<pad>",
        "added_tokens_decoder": {"0": {"content": "<pad>", "lstrip": False}}, "extra_ids": 100,
        "extra_special_tokens": {"image_token": "<image>"}, "additional_special_tokens": None, "bos_token": None,
    }  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "other", "cls_token": "<c>"}))
    read = read_tokenizer_config(tmp_path)
    assert read == config | {"cls_token": "<c>"}
