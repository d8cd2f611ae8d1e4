"""Text to token ids, for the tokenizers that text encoders ship with.

What a directory holds is told by its files, never by a class name:

    tokenizer.json             any tokenizer of the `tokenizers` library (preferred where present)
    vocab.json + merges.txt    CLIP byte pairs: lower case, `</w>` ends a word, bos and eos around the text
    spiece.model               T5 Unigram pieces: eos after the text, sentinels `<extra_id_n>` as last ids

Ids equal those of the transformers tokenizer of the same files.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit.errors import CheckpointError
from edgedit.models.spiece import CONTROL, USER_DEFINED, read_sentencepiece
from edgedit.models.tokenizer_config import (
    FURTHER_NAMES,
    SPECIAL_NAMES,
    listed_tokens,
    read_tokenizer_config,
)

if TYPE_CHECKING:
    import numpy as np
    import tokenizers

CLIP_SPLIT = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
CLIP_SPECIALS = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
                 "pad_token": "<|endoftext|>"}  # fmt: skip
T5_SPECIALS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
T5_EXTRA_IDS = 100
NO_LIMIT = 10**9  # transformers writes 1e30 where a tokenizer has no limit


@dataclass(frozen=True)
class Tokenizer:
    """Encodes prompts to fixed-length ids. Build one with `Tokenizer.from_dir`.

    Attributes:
        prefix_ids, suffix_ids: special tokens before and after every text; they survive truncation.
        pad_id: id that fills up to the length asked for.
        model_max_length: the tokenizer's own limit, from its config; None if it states none.
        warns: whether a warning says what is cut; one rank of several is enough.
    """

    backend: tokenizers.Tokenizer
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    pad_id: int
    padding_side: str
    model_max_length: int | None
    warns: bool = True

    @classmethod
    def from_dir(cls, directory: str | Path, warns: bool = True) -> Tokenizer:
        """Load the tokenizer of a directory.

        Raises:
            CheckpointError: if no known tokenizer files are there or they are malformed.
        """
        directory = Path(directory)
        config = read_tokenizer_config(directory)
        backend, specials = _load_backend(directory, config)
        _add_special_tokens(backend, config, specials)

        def special_id(name: str) -> int | None:
            content = _content(specials.get(name))
            return backend.token_to_id(content) if content is not None else None

        prefix, suffix = _surroundings(backend, special_id("bos_token"), special_id("eos_token"), directory)
        pad_id = special_id("pad_token")
        limit = config.get("model_max_length")
        return cls(
            backend,
            prefix,
            suffix,
            pad_id=0 if pad_id is None else pad_id,
            padding_side=config.get("padding_side", "right"),
            model_max_length=int(limit) if limit is not None and 0 < limit < NO_LIMIT else None,
            warns=warns,
        )

    def encode(
        self, texts: str | Sequence[str], max_length: int | None = None
    ) -> tuple[np.ndarray, list[int]]:
        """Ids of every text, padded and cut to one length.

        A text that is longer is cut with a warning that names both numbers; its last token stays eos.

        Args:
            texts: one text or several.
            max_length: length of every row in tokens, special tokens included; default `model_max_length`.

        Returns:
            ids: int32 [B, max_length].
            num_tokens: per text, its tokens before cutting, special tokens included.

        Raises:
            ValueError: if a text is not a string or max_length leaves no room for the special tokens.
        """
        import numpy as np

        texts = [texts] if isinstance(texts, str) else list(texts)
        length = self.model_max_length if max_length is None else max_length
        room = (length or 0) - len(self.prefix_ids) - len(self.suffix_ids)
        if length is None or room < 0:
            raise ValueError(
                f"max_length={length} must be given and hold at least the "
                f"{len(self.prefix_ids) + len(self.suffix_ids)} special tokens"
            )
        ids = np.full((len(texts), length), self.pad_id, dtype=np.int32)
        num_tokens = []
        for row, text in zip(ids, texts, strict=True):
            encoding = self._encoding(text)
            tokens = encoding.ids
            num_tokens.append(len(self.prefix_ids) + len(tokens) + len(self.suffix_ids))
            if num_tokens[-1] > length and self.warns:
                lost = text[encoding.offsets[room][0] :]
                warnings.warn(
                    f"a prompt of {num_tokens[-1]} tokens is cut to {length}; lost: {lost.strip()!r}",
                    stacklevel=2,
                )
            kept = [*self.prefix_ids, *tokens[:room], *self.suffix_ids]
            start = length - len(kept) if self.padding_side == "left" else 0
            row[start : start + len(kept)] = kept
        return ids, num_tokens

    def _encoding(self, text: str) -> tokenizers.Encoding:
        """The text alone, without special tokens around it."""
        try:
            return self.backend.encode(text, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise ValueError(f"a prompt must be a string of valid Unicode text, not {text!r}") from error


def _load_backend(directory: Path, config: dict[str, Any]) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The backend and the named special tokens: those of the config over the defaults of the kind."""
    from tokenizers import Tokenizer as Backend

    if (directory / "tokenizer.json").is_file():
        path = directory / "tokenizer.json"
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"{path}: not a tokenizer: {error}") from error
        backend.no_padding()
        backend.no_truncation()
        defaults = {"CLIP": CLIP_SPECIALS, "T5": T5_SPECIALS}.get(_kind(backend), {})
        return backend, _specials(config, defaults)
    if (directory / "vocab.json").is_file() and (directory / "merges.txt").is_file():
        specials = _specials(config, CLIP_SPECIALS)
        return _clip_backend(directory, _content(specials["unk_token"])), specials
    if (directory / "spiece.model").is_file():
        return _t5_backend(directory, config.get("extra_ids", T5_EXTRA_IDS)), _specials(config, T5_SPECIALS)
    raise CheckpointError(
        f"{directory}: holds no known tokenizer; looked for tokenizer.json, vocab.json with merges.txt, "
        "spiece.model"
    )


def _kind(backend: tokenizers.Tokenizer) -> str:
    model = backend.model
    if type(model).__name__ == "BPE" and model.end_of_word_suffix == "</w>":
        return "CLIP"
    return "T5" if type(model).__name__ == "Unigram" else "other"


def _clip_backend(directory: Path, unk_token: str | None) -> tokenizers.Tokenizer:
    from tokenizers import Regex, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    try:
        model = models.BPE.from_file(
            str(directory / "vocab.json"),
            str(directory / "merges.txt"),
            unk_token=unk_token,
            continuing_subword_prefix="",
            end_of_word_suffix="</w>",
        )
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{directory}: vocab.json and merges.txt are no byte-pair vocabulary: {error}"
        ) from error
    backend = Backend(model)
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CLIP_SPLIT), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return backend


def _t5_backend(directory: Path, extra_ids: int) -> tokenizers.Tokenizer:
    from tokenizers import AddedToken, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    spiece = read_sentencepiece(directory / "spiece.model")
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(extra_ids))]
    vocab = [(text, score) for text, score, _ in spiece.pieces] + [(text, 0.0) for text in sentinels]
    try:
        backend = Backend(models.Unigram(vocab, unk_id=spiece.unk_id, byte_fallback=False))
        if spiece.charsmap:
            backend.normalizer = normalizers.Precompiled(spiece.charsmap)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{directory / 'spiece.model'}: no Unigram model: {error}") from error
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    control = [text for text, _, kind in spiece.pieces if kind == CONTROL]
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in control + sentinels])
    user = [text for text, _, kind in spiece.pieces if kind == USER_DEFINED]
    backend.add_tokens([AddedToken(text, normalized=False) for text in user])
    return backend


def _specials(config: dict[str, Any], defaults: dict[str, str]) -> dict[str, Any]:
    return {name: config.get(name, defaults.get(name)) for name in SPECIAL_NAMES}


def _content(token: Any) -> str | None:
    """Special tokens stand in configs as a string or as an object with flags."""
    return token.get("content") if isinstance(token, dict) else token


def _add_special_tokens(
    backend: tokenizers.Tokenizer, config: dict[str, Any], specials: dict[str, Any]
) -> None:
    """Make every token that the config declares one that is found in the text before it is split."""
    listed = [
        token for _, token in sorted(config.get("added_tokens_decoder", {}).items(), key=lambda x: int(x[0]))
    ]
    known = {token.content for token in backend.get_added_tokens_decoder().values()} | set(
        map(_content, listed)
    )
    named = [token for token in specials.values() if token is not None]
    for name in FURTHER_NAMES:
        named += listed_tokens(config.get(name))
    # A token under two names, with and without flags, takes the flags of the later one.
    for token in listed + [token for token in named if _content(token) not in known]:
        _add_token(backend, token)


def _add_token(backend: tokenizers.Tokenizer, token: str | dict[str, Any]) -> None:
    from tokenizers import AddedToken

    flags = token if isinstance(token, dict) else {}
    chosen = {
        name: flags[name] for name in ("single_word", "lstrip", "rstrip", "normalized") if name in flags
    }
    added = AddedToken(_content(token), special=flags.get("special", True), **chosen)
    (backend.add_special_tokens if added.special else backend.add_tokens)([added])


def _surroundings(
    backend: tokenizers.Tokenizer, bos_id: int | None, eos_id: int | None, directory: Path
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Special tokens before and after a text.

    CLIP and T5 models were trained with theirs, whatever the file's post-processor says; other kinds follow it.
    """
    kind = _kind(backend)
    if kind == "other":
        plain, full = backend.encode("a", add_special_tokens=False).ids, backend.encode("a").ids
        start = next(i for i in range(len(full)) if full[i : i + len(plain)] == plain)
        return tuple(full[:start]), tuple(full[start + len(plain) :])
    if eos_id is not None and kind == "T5":
        return (), (eos_id,)
    if eos_id is not None and bos_id is not None:
        return (bos_id,), (eos_id,)
    raise CheckpointError(f"{directory}: the vocabulary lacks the bos or eos token that {kind} needs")
