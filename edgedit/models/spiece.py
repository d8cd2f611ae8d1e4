"""Reader of the three things a Unigram tokenizer needs from a SentencePiece model file.

The file is one protocol buffer message, `ModelProto` of sentencepiece_model.proto in
https://github.com/google/sentencepiece; the field numbers below are from there. Reading them directly keeps the
protobuf runtime and a second tokenizer engine out of the dependencies.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedit.errors import CheckpointError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # ModelProto.SentencePiece.Type
UNIGRAM = 1  # TrainerSpec.ModelType


@dataclass(frozen=True)
class SentencePieceModel:
    """`pieces` are (text, log probability, type) in id order; `charsmap` is the normaliser, maybe empty."""

    pieces: list[tuple[str, float, int]]
    charsmap: bytes

    @property
    def unk_id(self) -> int:
        return next(index for index, piece in enumerate(self.pieces) if piece[2] == UNKNOWN)


def read_sentencepiece(path: str | Path) -> SentencePieceModel:
    """Read a Unigram `spiece.model`.

    Raises:
        CheckpointError: if the file is malformed or holds a model of another kind; names the file.
    """
    pieces: list[tuple[str, float, int]] = []
    charsmap = b""
    try:
        for number, value in _fields(Path(path).read_bytes()):
            if number == 1:
                piece = dict(_fields(value))
                score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
                pieces.append((piece[1].decode("utf-8"), score, piece.get(3, NORMAL)))
            elif number == 2:
                model_type = dict(_fields(value)).get(3, UNIGRAM)
                if model_type != UNIGRAM:
                    raise CheckpointError(
                        f"{path}: SentencePiece model type {model_type} is not supported; only Unigram (1) is"
                    )
            elif number == 3:
                charsmap = dict(_fields(value)).get(2, b"")
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: not a SentencePiece model: {error}") from error
    if not any(piece[2] == UNKNOWN for piece in pieces):
        raise CheckpointError(f"{path}: not a SentencePiece model: it has no unknown piece")
    return SentencePieceModel(pieces, charsmap)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) pairs of a protocol buffer message: varints as int, everything else as bytes."""
    position = 0

    def take(count: int) -> bytes:
        nonlocal position
        if position + count > len(message):
            raise ValueError("message ends inside a field")
        position += count
        return message[position - count : position]

    def varint() -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("varint longer than 10 bytes")

    while position < len(message):
        tag = varint()
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            yield number, varint()
        elif wire_type == 1:
            yield number, take(8)
        elif wire_type == 2:
            yield number, take(varint())
        elif wire_type == 5:
            yield number, take(4)
        else:
            raise ValueError(f"unknown wire type {wire_type}")
