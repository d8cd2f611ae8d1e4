"""GGUF files that ``edgedit convert`` writes, in diffusers' own loader of the format: the same outputs."""

import inspect

import numpy as np
import pytest
from gguf.quants import dequantize
from relative_error import relative_error
from tiny import write_flux_transformer
from tiny_sd3 import write_sd3_transformer

from edgedit import cli
from edgedit.models.flux import FluxTransformer
from edgedit.models.sd3 import SD3Transformer

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
pytest.importorskip("accelerate")
single_file = pytest.importorskip("diffusers.loaders.single_file_model")


@pytest.fixture
def any_width(monkeypatch):
    """Diffusers' conversion of FLUX has the width of FLUX.1 written into it; here it is told another one."""
    classes = single_file.SINGLE_FILE_LOADABLE_CLASSES["FluxTransformer2DModel"]
    convert = classes["checkpoint_mapping_fn"]
    source = inspect.getsource(convert)
    assert source.count("inner_dim = 3072") == 1
    names = dict(convert.__globals__)
    exec(source.replace("inner_dim = 3072", "inner_dim = 64"), names)
    monkeypatch.setitem(classes, "checkpoint_mapping_fn", names[convert.__name__])


@pytest.fixture
def exact(monkeypatch):
    """Diffusers turns blocks into f16; here they become f32, by the gguf package."""

    def dequantised(tensor):
        if not hasattr(tensor, "quant_type"):
            return tensor
        return torch.from_numpy(dequantize(tensor.as_tensor().numpy(), tensor.quant_type))

    monkeypatch.setattr("diffusers.quantizers.gguf.utils.dequantize_gguf_tensor", dequantised)


def inputs(config, is_flux):
    rng = np.random.default_rng(1)
    shapes = {
        "hidden_states": (2, 6, config.in_channels) if is_flux else (2, config.in_channels, 4, 6),
        "encoder_hidden_states": (2, 5, config.joint_attention_dim),
        "pooled_projections": (2, config.pooled_projection_dim),
    }
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    if is_flux:
        arrays["img_ids"] = np.stack([np.zeros(6), *np.indices((2, 3)).reshape(2, -1)], 1)
        arrays["txt_ids"] = np.zeros((5, 3))
    return {name: x.astype(np.float32) for name, x in arrays.items()} | {"timestep": np.float32([0.25, 0.75])}


@pytest.mark.parametrize("dtype", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("family", ["flux", "sd3"])
def test_diffusers_reads_what_was_converted(tmp_path, any_width, exact, family, dtype):
    write, model, reference = {
        "flux": (write_flux_transformer, FluxTransformer, diffusers.FluxTransformer2DModel),
        "sd3": (write_sd3_transformer, SD3Transformer, diffusers.SD3Transformer2DModel),
    }[family]
    directory, path = tmp_path / "transformer", tmp_path / "a.gguf"
    write(directory)
    assert cli.main(["convert", str(directory), str(path), "--type", dtype, "--quiet"]) == 0
    loaded = reference.from_single_file(
        str(path),
        config=str(directory),
        quantization_config=diffusers.GGUFQuantizationConfig(compute_dtype=torch.float32),
        torch_dtype=torch.float32,
    )
    own = model.from_pretrained(path, "f32")
    arrays = inputs(own.config, family == "flux")
    with torch.no_grad():
        tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
        expected = loaded(**tensors, return_dict=False)[0]
    assert relative_error(own(**arrays), expected) <= 1e-4
    assert relative_error(model.from_pretrained(directory)(**arrays), expected) > 1e-5
