"""Tokenizers without transformers: the shape of what `encode` returns, cutting, and files that are not there.

The sentencepiece library is the oracle for T5; for CLIP, ids are spelt out from the vocabulary by hand.
"""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
from tiny import EMBEDDED

from edgedit.errors import CheckpointError
from edgedit.models.spiece import read_sentencepiece
from edgedit.models.tokenizers import Tokenizer

BOS, EOS = 2105, 2106
FILES = {
    "CLIP json": ("tokenizer", ["tokenizer.json"]),
    "CLIP files": ("tokenizer", ["vocab.json", "merges.txt"]),
    "T5 json": ("tokenizer_2", ["tokenizer.json"]),
    "T5 files": ("tokenizer_2", ["spiece.model"]),
}


@pytest.fixture
def tokenizer(request, tmp_path):
    source, files = FILES[request.param]
    for file in [*files, "tokenizer_config.json"]:
        shutil.copy(EMBEDDED / source / file, tmp_path)
    return Tokenizer.from_dir(tmp_path)


def word_ids(*words):
    vocab = json.loads((EMBEDDED / "tokenizer" / "vocab.json").read_text())
    return [vocab[f"{word}</w>"] for word in words]


@pytest.mark.parametrize("tokenizer", ["CLIP json", "CLIP files"], indirect=True)
@pytest.mark.parametrize("prompt", ["a red apple", "A  RED\n apple ", "a red\tApple"])
def test_clip_lowers_case_cleans_white_space_and_pads_with_eos(tokenizer, prompt):
    ids, num_tokens = tokenizer.encode(prompt)
    assert ids.dtype == np.int32
    assert ids.tolist() == [[BOS, *word_ids("a", "red", "apple"), *[EOS] * 12]]
    assert num_tokens == [5]


@pytest.mark.parametrize("tokenizer", ["T5 json", "T5 files"], indirect=True)
@pytest.mark.parametrize("prompt", ["a red apple", "", "zebra? qu\u00e9 42!", "a   photo of\na cat"])
def test_t5_ids_are_those_of_sentencepiece(tokenizer, prompt):
    sentencepiece = pytest.importorskip("sentencepiece")
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(EMBEDDED / "tokenizer_2" / "spiece.model")
    )
    expected = [*processor.encode(prompt), 1]
    ids, num_tokens = tokenizer.encode(prompt, 40)
    assert ids[0].tolist() == expected + [0] * (40 - len(expected))
    assert num_tokens == [len(expected)]


@pytest.mark.parametrize("tokenizer", FILES, indirect=True)
def test_texts_of_one_call_share_one_length_and_the_default_is_the_tokenizers_own(tokenizer):
    assert tokenizer.model_max_length == 16
    ids, num_tokens = tokenizer.encode(["a cat", "", "a big red apple"])
    assert ids.shape == (3, 16)
    assert num_tokens[1] < num_tokens[0] < num_tokens[2]
    for row, text in zip(ids, ["a cat", "", "a big red apple"], strict=True):
        np.testing.assert_array_equal(row, tokenizer.encode(text)[0][0])


@pytest.mark.parametrize("tokenizer", FILES, indirect=True)
def test_a_long_prompt_is_cut_with_a_warning_that_names_both_numbers_and_eos_stays_last(tokenizer):
    prompt = "a cat " * 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole, (count,) = tokenizer.encode(prompt, 60)
    with pytest.warns(
        UserWarning, match=f"a prompt of {count} tokens is cut to 9; lost: '(a )?cat( a cat)+'"
    ):
        ids, num_tokens = tokenizer.encode(prompt, 9)
    assert num_tokens == [count]
    assert ids[0, -1] == tokenizer.suffix_ids[0]
    np.testing.assert_array_equal(ids[0, :-1], whole[0, :8])


@pytest.mark.parametrize("tokenizer", FILES, indirect=True)
def test_a_prompt_that_just_fits_is_not_cut(tokenizer):
    _, (count,) = tokenizer.encode("a cat", 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ids, _ = tokenizer.encode("a cat", count)
    assert ids.shape == (1, count)


@pytest.mark.parametrize("tokenizer", ["CLIP json", "T5 files"], indirect=True)
def test_lengths_without_room_and_texts_that_are_no_text_are_refused(tokenizer):
    with pytest.raises(ValueError, match="max_length=0 must be given and hold at least"):
        tokenizer.encode("a", 0)
    with pytest.raises(ValueError, match="string of valid Unicode"):
        tokenizer.encode([7], 16)
    with pytest.raises(ValueError, match="string of valid Unicode"):
        tokenizer.encode("\ud800", 16)


def test_padding_side_and_pad_token_follow_the_config(tmp_path):
    for file in ("vocab.json", "merges.txt"):
        shutil.copy(EMBEDDED / "tokenizer" / file, tmp_path)
    config = {"padding_side": "left", "pad_token": "!", "model_max_length": 6}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    pad = json.loads((tmp_path / "vocab.json").read_text())["!"]
    ids, _ = Tokenizer.from_dir(tmp_path).encode("a cat")
    assert ids.tolist() == [[pad, pad, BOS, *word_ids("a", "cat"), EOS]]


def test_a_tokenizer_without_a_limit_needs_a_length(tmp_path):
    shutil.copy(EMBEDDED / "tokenizer_2" / "spiece.model", tmp_path)
    tokenizer = Tokenizer.from_dir(tmp_path)
    assert tokenizer.model_max_length is None
    with pytest.raises(ValueError, match="max_length=None must be given"):
        tokenizer.encode("a cat")


def test_sentinels_follow_the_vocabulary_in_descending_order(tmp_path):
    shutil.copy(EMBEDDED / "tokenizer_2" / "spiece.model", tmp_path)
    size = len(read_sentencepiece(tmp_path / "spiece.model").pieces)
    ids, _ = Tokenizer.from_dir(tmp_path).encode("<extra_id_99><extra_id_0>", 3)
    assert ids.tolist() == [[size, size + 99, 1]]


def test_a_directory_without_known_files_lists_what_was_looked_for(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"looked for tokenizer\.json, vocab\.json with merges\.txt, spiece\.model"
    ):
        Tokenizer.from_dir(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\x0a\xff\xff", b"[1]"])
def test_damaged_files_are_refused_and_named(tmp_path, name, content):
    shutil.copy(EMBEDDED / "tokenizer_2" / "spiece.model", tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        Tokenizer.from_dir(tmp_path)


def test_every_truncation_of_a_sentencepiece_model_is_read_or_refused(tmp_path):
    whole = (EMBEDDED / "tokenizer_2" / "spiece.model").read_bytes()
    path = tmp_path / "spiece.model"
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        try:
            read_sentencepiece(path)
        except CheckpointError as error:
            assert str(path) in str(error)
