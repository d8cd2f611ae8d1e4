"""Fuzzers of the JSON files around weights: whatever they say, a ValueError, or a network that can be built."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from fuzzing import bounded, fuzz_bytes, fuzz_made, odd_json, write
from tiny import EMBEDDED
from tiny_sd3 import write_sd3_pipeline

from edgedit import presets
from edgedit.models.autoencoder_kl import AutoencoderKL
from edgedit.models.clip import CLIPTextModel
from edgedit.models.flux import FluxTransformer
from edgedit.models.sd3 import SD3Transformer
from edgedit.models.t5 import T5EncoderModel
from edgedit.models.tokenizers import Tokenizer
from edgedit.pipelines.settings import read_settings
from edgedit.sampling.schedule import FlowMatchSchedule
from edgedit.weights.configs import read_json

pytestmark = pytest.mark.timeout(3600)

NETWORK_NBYTES = 1 << 20  # what a network of as many layers as may be is allowed, times fuzzing.MEMORY_RATIO


def read(path):
    return json.loads(path.read_text())


CONFIGS = {
    FluxTransformer: read(EMBEDDED / "transformer" / "config.json"),
    SD3Transformer: presets.read("sd3.5-medium")["transformer"],
    CLIPTextModel: read(EMBEDDED / "text_encoder" / "config.json"),
    T5EncoderModel: read(EMBEDDED / "text_encoder_2" / "config.json"),
    AutoencoderKL: read(EMBEDDED / "vae" / "config.json"),
}


@pytest.mark.parametrize("model", CONFIGS, ids=lambda model: model.__name__)
def test_configs_of_networks(tmp_path, model):
    def check(content: bytes) -> None:
        write(tmp_path / "config.json", content)
        with bounded(NETWORK_NBYTES):
            try:
                network = model.build_network(model.read_config(tmp_path))
            except ValueError as error:
                assert str(error).isprintable()
                return
            shapes = [parameter.shape for _, parameter in network.named_parameters()]
        assert all(type(size) is int and size > 0 for shape in shapes for size in shape)

    fuzz_made(lambda random: odd_json(random, CONFIGS[model]), check, 0.01)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """A pipeline of each family, without weights."""
    folder = tmp_path_factory.mktemp("pipelines")
    shutil.copytree(EMBEDDED, folder / "flux", ignore=shutil.ignore_patterns("*.safetensors"))
    write_sd3_pipeline(folder / "sd3")
    return [folder / "flux", folder / "sd3"]


def test_configs_of_pipelines(directories):
    files = [path for folder in directories for path in folder.rglob("*config.json")]
    files += [folder / "model_index.json" for folder in directories]
    for path in files:
        whole = read(path)

        def check(content: bytes, path=path) -> None:
            write(path, content)
            with bounded(NETWORK_NBYTES):
                try:
                    settings = read_settings(next(folder for folder in directories if folder in path.parents))
                except ValueError as error:
                    assert str(error).isprintable()
                    return
            assert settings.limits.size > 0

        fuzz_made(lambda random, whole=whole: odd_json(random, whole), check, 0.04 / len(files))
        path.write_text(json.dumps(whole))


def test_configs_of_schedulers(tmp_path):
    whole = read(EMBEDDED / "scheduler" / "scheduler_config.json")

    def check(content: bytes) -> None:
        write(tmp_path / "scheduler_config.json", content)
        try:
            schedule = FlowMatchSchedule.from_config(read_json(tmp_path / "scheduler_config.json"))
            sigmas = schedule.sigmas(4, 64)
        except ValueError as error:
            assert str(error).isprintable()
            return
        assert sigmas.shape == (5,)
        assert np.isfinite(sigmas).all()

    fuzz_made(lambda random: odd_json(random, whole), check, 0.01)


WORDS = [b"<unk>", b"</s>", b"\0", b"\xff" * 10, b"\x0a", b"\x12", b"\x1a", b"\x7f", b"\xed\xa0\x80"]


def test_sentencepiece_models(tmp_path):
    """The whole file, which has many pieces, and one with a few and the normaliser."""
    whole = (EMBEDDED / "tokenizer_2" / "spiece.model").read_bytes()
    fields = list(spans(whole))
    small = b"".join([*fields[:30], *(field for field in fields if field[0] >> 3 in (2, 3))])

    def check(content: bytes) -> None:
        write(tmp_path / "spiece.model", content)
        with bounded(len(content) + NETWORK_NBYTES):
            try:
                tokenizer = Tokenizer.from_dir(tmp_path)
            except ValueError as error:
                assert str(tmp_path) in str(error)
                assert str(error).isprintable()
                return
            tokenizer.encode("a red apple", 64)

    check(whole)
    fuzz_bytes([small, small, whole], WORDS, check, 0.03)


def spans(message):
    """The fields of a protocol buffer message that are all length-delimited, tag and length included."""
    position = 0
    while position < len(message):
        begin, length, shift = position, 0, 0
        position += 1
        while True:
            length |= (message[position] & 0x7F) << shift
            position, shift = position + 1, shift + 7
            if message[position - 1] < 0x80:
                break
        position += length
        yield message[begin:position]
