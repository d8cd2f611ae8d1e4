"""Token ids against transformers, for every set of files that a tokenizer may come as."""

from __future__ import annotations

import json
import shutil

import pytest
from tiny import EMBEDDED

from edgedit.models.tokenizers import Tokenizer

transformers = pytest.importorskip("transformers")

PROMPTS = [
    "",
    "a red apple",
    "A Red APPLE!!",
    " leading and trailing ",
    "multiple   spaces\t\ttabs\nnewlines\r\n x",
    "émoji 😀👍🏽 naïve café",
    "中文字符 混合 english",
    "don't I'll we've they're he'd",
    "1234 12a3 a1b2",
    "<|endoftext|> in text <|startoftext|>",
    "<|ENDOFTEXT|>",
    "</s> <pad> <unk> <extra_id_0> <extra_id_99>",
    "▁under ▁score_x",
    "ﬁ ligature Å Å ½ ①",
    "\u200bzero\u200bwidth \u00a0nbsp\u3000ideographic",
    "x" * 500,
    "cat " * 200,
    "a.b,c;d:e!f?g(h)i[j]",
    "İstanbul ẞ ΑΒΓ",
    "\x00 null \x07 bell",
    "hello , world .",
    "’curly’ “quotes” — dash…",
]


def added(content, **flags):
    return {
        "__type": "AddedToken",
        "content": content,
        "lstrip": False,
        "rstrip": False,
        "single_word": False,
    } | flags


OPENAI = {
    "bos_token": added("<|startoftext|>", normalized=True),
    "eos_token": added("<|endoftext|>", normalized=True),
    "unk_token": "<|endoftext|>",
    "pad_token": "!",
    "model_max_length": 77,
}
DECLARED = OPENAI | {
    "added_tokens_decoder": {
        "2105": added("<|startoftext|>", normalized=True, special=True),
        "2106": added("<|endoftext|>", normalized=True, special=True),
    }
}

# name: (transformers class, embedded tokenizer, files to copy, config to write or None to copy it)
CASES = {
    "CLIP, all files": ("CLIPTokenizer", "tokenizer", ["tokenizer.json", "vocab.json", "merges.txt"], None),
    "CLIP, tokenizer.json": ("CLIPTokenizer", "tokenizer", ["tokenizer.json"], None),
    "CLIP, vocabulary and merges": ("CLIPTokenizer", "tokenizer", ["vocab.json", "merges.txt"], None),
    "CLIP, no config": ("CLIPTokenizer", "tokenizer", ["vocab.json", "merges.txt"], {}),
    "CLIP, config as OpenAI's": ("CLIPTokenizer", "tokenizer", ["vocab.json", "merges.txt"], OPENAI),
    "CLIP, added tokens declared": ("CLIPTokenizer", "tokenizer", ["tokenizer.json"], DECLARED),
    "T5, all files": ("T5Tokenizer", "tokenizer_2", ["tokenizer.json", "spiece.model"], None),
    "T5, tokenizer.json": ("T5Tokenizer", "tokenizer_2", ["tokenizer.json"], None),
    "T5, spiece.model": ("T5Tokenizer", "tokenizer_2", ["spiece.model"], None),
    "T5, no config": ("T5Tokenizer", "tokenizer_2", ["spiece.model"], {}),
    "T5, three extra ids": ("T5Tokenizer", "tokenizer_2", ["spiece.model"], {"extra_ids": 3}),
}


def make_dir(directory, source, files, config):
    directory.mkdir(exist_ok=True)
    for file in files:
        shutil.copy(EMBEDDED / source / file, directory)
    if config is None:
        shutil.copy(EMBEDDED / source / "tokenizer_config.json", directory)
    elif config:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))


def check_equal_ids(directory, kind):
    theirs, ours = getattr(transformers, kind).from_pretrained(directory), Tokenizer.from_dir(directory)
    for length in (16, 77):
        expected = theirs(PROMPTS, padding="max_length", truncation=True, max_length=length)["input_ids"]
        whole = theirs(PROMPTS)["input_ids"]
        for prompt, row, uncut in zip(PROMPTS, expected, whole, strict=True):
            ids, num_tokens = ours.encode(prompt, length)
            assert ids[0].tolist() == row, repr(prompt)
            assert num_tokens == [len(uncut)], repr(prompt)


@pytest.mark.filterwarnings("ignore:a prompt of:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_ids_and_lengths_agree(tmp_path, name):
    kind, source, files, config = CASES[name]
    make_dir(tmp_path, source, files, config)
    check_equal_ids(tmp_path, kind)


@pytest.mark.filterwarnings("ignore:a prompt of:UserWarning")
@pytest.mark.parametrize(("kind", "source"), [("CLIPTokenizer", "tokenizer"), ("T5Tokenizer", "tokenizer_2")])
def test_special_tokens_are_added_even_where_the_file_has_no_post_processor(tmp_path, kind, source):
    make_dir(tmp_path, source, [], None)
    content = json.loads((EMBEDDED / source / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"post_processor": None}))
    check_equal_ids(tmp_path, kind)


def test_limits_agree(tmp_path):
    make_dir(tmp_path, "tokenizer", ["vocab.json", "merges.txt"], OPENAI)
    assert Tokenizer.from_dir(tmp_path).model_max_length == 77
    assert transformers.CLIPTokenizer.from_pretrained(tmp_path).model_max_length == 77
