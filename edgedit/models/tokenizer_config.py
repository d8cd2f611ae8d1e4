"""What tokenizer_config.json and special_tokens_map.json say, checked before a tokenizer is made of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgedit.errors import CheckpointError

FILES = ("special_tokens_map.json", "tokenizer_config.json")  # the later one wins
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FURTHER_NAMES = ("additional_special_tokens", "extra_special_tokens")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
MAX_EXTRA_IDS = 1 << 16


def read_tokenizer_config(directory: Path) -> dict[str, Any]:
    """Both files as one; either may be absent. Special tokens are a string, or an object of `content` and flags.

    Raises:
        CheckpointError: if a file is malformed; names it.
    """
    config: dict[str, Any] = {}
    for name in FILES:
        path = directory / name
        if not path.is_file():
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: malformed JSON: {error}") from error
        if not isinstance(content, dict):
            raise CheckpointError(f"{path}: is not a JSON object")
        for problem in _problems(content):
            raise CheckpointError(f"{path}: {problem}")
        config.update(content)
    return config


def listed_tokens(value: Any) -> list[Any]:
    """The tokens of a list, or of an object that names them."""
    return list(value.values() if isinstance(value, dict) else value or [])


def _problems(config: Mapping[str, Any]) -> Iterator[str]:
    for name in SPECIAL_NAMES:
        if config.get(name) is not None and not _is_token(config[name]):
            yield f"{name} is {config[name]!r}; it must be a string or an object with content"
    for name in FURTHER_NAMES:
        tokens = config.get(name)
        if not isinstance(tokens, (list, dict, type(None))) or not all(map(_is_token, listed_tokens(tokens))):
            yield f"{name} must be a list of tokens"
    added = config.get("added_tokens_decoder", {})
    if not isinstance(added, dict) or not all(map(_is_id, added)) or not all(map(_is_token, added.values())):
        yield "added_tokens_decoder must lead from ids to tokens"
    limit = config.get("model_max_length")
    if limit is not None and type(limit) not in (int, float):
        yield f"model_max_length is {limit!r}; it must be a number"
    side = config.get("padding_side", "right")
    if side not in ("left", "right"):
        yield f"padding_side is {side!r}; legal: 'left', 'right'"
    extra = config.get("extra_ids", 0)
    if type(extra) is not int or not 0 <= extra <= MAX_EXTRA_IDS:
        yield f"extra_ids is {extra!r}; it must be an integer from 0 to {MAX_EXTRA_IDS}"


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _is_token(token: Any) -> bool:
    flags = {} if isinstance(token, str) else token
    text = token if isinstance(token, str) else token.get("content") if isinstance(token, dict) else None
    if not isinstance(text, str) or any("\ud800" <= letter <= "\udfff" for letter in text):
        return False
    return all(isinstance(flags.get(name, False), bool) for name in FLAGS)
