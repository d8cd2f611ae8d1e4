"""LoRA files: every spelling of keys gives the same factors and scales, and what is no plain LoRA is refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from edgedit.errors import CheckpointError
from edgedit.weights.lora_file import read_lora

DOWN = np.arange(12, dtype=np.float32).reshape(2, 6) / 8
UP = np.arange(10, dtype=np.float32).reshape(5, 2) / 16

SPELLINGS = {
    "diffusers": ("transformer.a.to_q.lora_A.weight", "transformer.a.to_q.lora_B.weight"),
    "an adapter's name": ("a.to_q.lora_A.default_0.weight", "a.to_q.lora_B.default_0.weight"),
    "diffusers, earlier": ("transformer.a.to_q.lora.down.weight", "transformer.a.to_q.lora.up.weight"),
    "text encoders, earlier": (
        "text_encoder.q.lora_linear_layer.down.weight",
        "text_encoder.q.lora_linear_layer.up.weight",
    ),
    "kohya": ("lora_unet_a_to_q.lora_down.weight", "lora_unet_a_to_q.lora_up.weight"),
}


def write(directory, tensors, name="lora.safetensors", **metadata):
    save_file(tensors, directory / name, metadata=metadata or None)
    return directory / name


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("alpha", [None, 4.0])
def test_factors_and_scale_of_every_spelling(tmp_path, spelling, alpha):
    down, up = SPELLINGS[spelling]
    module = down[: down.index(".lora")]
    tensors = {down: DOWN.astype(np.float16), up: UP}
    if alpha is not None:
        tensors[f"{module}.alpha"] = np.array(alpha, np.float32)
    (factors,) = read_lora(write(tmp_path, tensors))
    assert (factors.module, factors.shape, factors.rank) == (module, (5, 6), 2)
    assert factors.scale == (1.0 if alpha is None else 2.0)
    np.testing.assert_array_equal(factors.down(), DOWN)
    np.testing.assert_array_equal(factors.up(), UP)


@pytest.mark.parametrize("dtype", [np.float16, np.int64])
def test_alphas_of_other_types(tmp_path, dtype):
    down, up = SPELLINGS["kohya"]
    path = write(tmp_path, {down: DOWN, up: UP, "lora_unet_a_to_q.alpha": np.array([1], dtype)})
    assert read_lora(path)[0].scale == 0.5


def test_factors_of_a_convolution_are_flattened(tmp_path):
    down, up = np.ones((2, 3, 2, 2), np.float32), UP.reshape(5, 2, 1, 1)
    (factors,) = read_lora(write(tmp_path, {"a.lora_A.weight": down, "a.lora_B.weight": up}))
    assert factors.shape == (5, 3, 2, 2)
    assert factors.down().shape == (2, 12)
    np.testing.assert_array_equal(factors.up(), UP)


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({"lora_alpha": 8}, (4.0, 4.0)),
        ({"lora_alpha": 8, "alpha_pattern": {"b.to_k": 3}}, (4.0, 1.5)),
        ({"lora_alpha": 8, "use_rslora": True}, (8 / 2**0.5, 8 / 2**0.5)),
    ],
)
def test_alphas_from_the_config_that_peft_keeps(tmp_path, config, scales):
    modules = ("a.to_q", "b.to_k")
    pair = {"lora_A.weight": DOWN, "lora_B.weight": UP}

    def named(prefix):
        return {f"{prefix}{module}.{name}": values for module in modules for name, values in pair.items()}

    in_pipeline = {f"transformer.{name}": value for name, value in config.items()}
    paths = [
        write(tmp_path, named("transformer."), lora_adapter_metadata=json.dumps(in_pipeline)),
        write(tmp_path, named(""), "model.safetensors", lora_adapter_metadata=json.dumps(config)),
        write(tmp_path, named("base_model.model."), "adapter_model.safetensors"),
    ]
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    for path in (*paths, tmp_path):
        assert [factors.scale for factors in read_lora(path)] == pytest.approx(scales)


def test_a_config_of_another_component_gives_no_alpha(tmp_path):
    down, up = SPELLINGS["diffusers"]
    metadata = json.dumps({"text_encoder.lora_alpha": 8})
    assert read_lora(write(tmp_path, {down: DOWN, up: UP}, lora_adapter_metadata=metadata))[0].scale == 1.0


def test_a_missing_config_of_peft_is_warned_of(tmp_path):
    path = write(tmp_path, {"base_model.model.a.lora_A.weight": DOWN, "base_model.model.a.lora_B.weight": UP})
    with pytest.warns(UserWarning, match="no adapter_config.json is beside it; its scale is taken to be 1"):
        (factors,) = read_lora(path)
    assert factors.scale == 1.0


PAIR = dict(zip(SPELLINGS["diffusers"], (DOWN, UP), strict=True))
REFUSED = {
    "a strange key": (PAIR | {"transformer.a.weight": UP}, "1 tensors are no factors of a LoRA: transformer.a.weight"),
    "DoRA": (PAIR | {"transformer.a.to_q.lora_magnitude_vector": UP}, "DoRA, not supported"),
    "LoKr": ({"lora_unet_a.lokr_w1": UP, "lora_unet_a.lokr_w2": UP}, "2 tensors are no .*LoKr, not supported"),
    "a factor alone": ({"a.lora_A.weight": DOWN}, "lack their other factor: a.lora_A.weight"),
    "an alpha alone": (PAIR | {"b.alpha": np.ones(1, np.float32)}, "lack their other factor: b.alpha"),
    "ranks that differ": ({"a.lora_A.weight": DOWN, "a.lora_B.weight": UP.T.copy()}, r"\[2, 6\] and a.lora_B.weight"),
    "two pairs of one module": (
        PAIR | {"transformer.a.to_q.lora_down.weight": DOWN, "transformer.a.to_q.lora_up.weight": UP},
        "two down factors",
    ),
    "integers": ({"a.lora_A.weight": DOWN.astype(np.int8), "a.lora_B.weight": UP}, "has type I8"),
    "an alpha that is not finite": (PAIR | {"transformer.a.to_q.alpha": np.float32([np.nan])}, "is nan"),
    "an alpha of two numbers": (PAIR | {"transformer.a.to_q.alpha": np.float32([1, 1])}, "one number"),
    "no rank": ({"a.lora_A.weight": DOWN[:0], "a.lora_B.weight": UP[:, :0]}, "no pair of factors"),
    "nothing": ({}, "holds no LoRA"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_plain_lora_is_refused_by_name(tmp_path, case):
    tensors, message = REFUSED[case]
    path = write(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=message) as error:
        read_lora(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "malformed"),
        ("[]", "no object"),
        ('{"lora_alpha": "x"}', "the alpha 'x'"),
        ('{"lora_alpha": 1, "use_dora": true}', "use_dora"),
        ('{"lora_alpha": 1, "alpha_pattern": {"(a+)+": 1}}', "no plain module name"),
        ('{"lora_alpha": 1, "alpha_pattern": {"to_q": 1, "a.to_q": 2}}', "several alphas"),
    ],
)
def test_bad_configs_are_refused(tmp_path, text, message):
    with pytest.raises(CheckpointError, match=message):
        read_lora(write(tmp_path, PAIR, lora_adapter_metadata=text))


def test_files_that_are_not_safetensors_are_refused(tmp_path):
    (tmp_path / "lora.pt").write_bytes(b"")
    for path, message in (
        (tmp_path / "lora.pt", "must be a safetensors file"),
        (tmp_path, "holds no LoRA"),
        (tmp_path / "absent.safetensors", "cannot be read"),
    ):
        with pytest.raises(CheckpointError, match=message):
            read_lora(path)
