"""How pictures are read and fitted, against diffusers: bit for bit."""

import numpy as np
import pytest
from PIL import Image
from tiny_images import mask, picture

from edgedit.pipelines.image_inputs import FILL, REFERENCE, image_input
from edgedit.pipelines.pictures import read

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
Processor = diffusers.image_processor.VaeImageProcessor

MODES = ["RGB", "L", "RGBA", "P", "1", "CMYK"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("orientation", [None, 3, 6])
def test_files_are_read_alike(mode, orientation, tmp_path):
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    picture(23, 14).convert(mode).save(path, exif=exif)
    np.testing.assert_array_equal(np.asarray(read(path)), np.asarray(diffusers.utils.load_image(str(path))))


@pytest.mark.parametrize("size", [(32, 48), (16, 16), (128, 96)])
def test_pictures_and_masks_are_fitted_alike(size):
    height, width = size
    made = image_input(FILL, size, 16, picture(50, 41), mask(50, 41))
    image = Processor(vae_scale_factor=16).preprocess(picture(50, 41), height=height, width=width)
    np.testing.assert_array_equal(made.values, image.numpy())
    binary = Processor(
        vae_scale_factor=16, do_normalize=False, do_binarize=True, do_convert_grayscale=True
    ).preprocess(mask(50, 41), height=height, width=width)
    np.testing.assert_array_equal(made.mask, binary.numpy()[0, 0] == 1)
    np.testing.assert_array_equal(made.masked_values, (image * (1 - binary)).numpy())


@pytest.mark.parametrize("size", [(1920, 1080), (333, 1000), (64, 64), (31, 17)])
def test_references_get_the_size_that_diffusers_gives_them(size, monkeypatch):
    """The part of the pipeline that prepares the picture, stopped where it would be encoded."""

    class Stop(Exception):
        pass

    pipeline = object.__new__(diffusers.FluxKontextPipeline)
    seen = {}

    def prepare_latents(image, *_, **__):
        seen["image"] = image
        raise Stop

    processor = Processor(vae_scale_factor=16)
    values = {
        "image_processor": processor, "latent_channels": 16, "vae_scale_factor": 8, "default_sample_size": 128,
        "prepare_latents": prepare_latents, "check_inputs": lambda *_, **__: None,
        "encode_prompt": lambda **_: (torch.zeros(1, 1, 1), torch.zeros(1, 1), torch.zeros(1, 3)),
        "transformer": type("T", (), {"config": type("C", (), {"in_channels": 64})}),
    }  # fmt: skip
    for name, value in values.items():
        object.__setattr__(pipeline, name, value)
    monkeypatch.setattr(diffusers.FluxKontextPipeline, "_execution_device", "cpu", raising=False)
    with pytest.raises(Stop):
        diffusers.FluxKontextPipeline.__call__(pipeline, image=picture(*size), prompt="a cat")
    made = image_input(REFERENCE, (1024, 1024), 16, picture(*size))
    np.testing.assert_array_equal(made.values, seen["image"].numpy())
