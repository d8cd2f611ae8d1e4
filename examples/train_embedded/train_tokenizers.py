"""The two tokenizers of the pipeline, trained on the captions.

CLIP: byte-level BPE with `</w>` (vocab.json, merges.txt). T5: a sentencepiece unigram model in which every
word of a caption is one piece, and which folds case by a table of 26 letters (the stock table is 240 KB).
Reads work/captions.json, writes work/tokenizer and work/tokenizer_2.
"""

import argparse
import io
import json
from pathlib import Path

import sentencepiece
from captions import corpus
from data import HERE, Pictures
from networks import TEXT_TOKENS
from sentencepiece import sentencepiece_model_pb2
from tokenizers import pre_tokenizers, trainers
from transformers import CLIPTokenizer, T5TokenizerFast

WORD_SCORE = -6.5  # better than any way of spelling a word from smaller pieces


def write_t5(lines: list[str], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    fold_case = directory / "fold_case.tsv"
    letters = [f"{ord('A') + index:X}\t{ord('a') + index:X}\n" for index in range(26)]
    fold_case.write_text("".join(letters) + "9\t20\nA\t20\n", encoding="utf-8")
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=trained, model_type="unigram", vocab_size=1200,
        hard_vocab_limit=False, character_coverage=1.0, max_sentencepiece_length=16,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, normalization_rule_tsv=str(fold_case),
        shuffle_input_sentence=False, num_threads=1, minloglevel=2,
    )  # fmt: skip
    fold_case.unlink()

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(trained.getvalue())
    words = sorted({word for line in lines for word in line.split() if word.isalnum() and len(word) > 1})
    pieces = {piece.piece: piece for piece in model.pieces}
    for word in words:
        known = pieces.get("\u2581" + word)
        if known is None:
            model.pieces.add(piece="\u2581" + word, score=WORD_SCORE)
        else:
            known.score = max(known.score, WORD_SCORE)
    model.trainer_spec.vocab_size = len(model.pieces)
    (directory / "spiece.model").write_bytes(model.SerializeToString())

    tokenizer = T5TokenizerFast.from_pretrained(directory, extra_ids=0, model_max_length=TEXT_TOKENS)
    tokenizer.save_pretrained(directory)
    split = [word for word in words if len(tokenizer.tokenize(word)) > 1]
    print(f"T5: {len(tokenizer)} pieces, {len(split)} of {len(words)} words in more than one piece")


def write_clip(lines: list[str], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    backend = CLIPTokenizer().backend_tokenizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=2600, end_of_word_suffix="</w>", initial_alphabet=alphabet, special_tokens=[],
        show_progress=False, min_frequency=1,
    )  # fmt: skip
    backend.train_from_iterator(lines, trainer)

    # CLIP numbers its tokens so: bytes, bytes that end a word, merges in their order, the two special ones.
    vocabulary = alphabet + [letter + "</w>" for letter in alphabet]
    known = set(vocabulary)
    merges = []
    for left, right in json.loads(backend.to_str())["model"]["merges"]:
        if left in known and right in known:
            merges.append((left, right))
            if left + right not in known:
                known.add(left + right)
                vocabulary.append(left + right)
    vocabulary += ["<|startoftext|>", "<|endoftext|>"]
    numbers = {token: number for number, token in enumerate(vocabulary)}

    CLIPTokenizer(vocab=numbers, merges=merges, model_max_length=TEXT_TOKENS).save_pretrained(directory)
    (directory / "vocab.json").write_text(json.dumps(numbers, ensure_ascii=False), encoding="utf-8")
    merge_lines = "".join(f"{left} {right}\n" for left, right in merges)
    (directory / "merges.txt").write_text("#version: 0.2\n" + merge_lines, encoding="utf-8")
    print(f"CLIP: {len(numbers)} tokens, {len(merges)} merges")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=HERE / "work")
    work = parser.parse_args().work
    lines = corpus(Pictures.load(work).captions)
    write_t5(lines, work / "tokenizer_2")
    write_clip(lines, work / "tokenizer")


if __name__ == "__main__":
    main()
