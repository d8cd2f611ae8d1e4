"""What types of weights cost in quality: pictures of the embedded model against those of its f32 weights.

    python benchmarks/quantisation.py --sheet docs/quantisation.png

Two ways for every type. "loaded" is what `--dtype` gives: rows of a weight that do not fill the blocks of a type keep
more bits, and of this model, 192 channels wide, few rows fill blocks of 256. "rounded" takes every linear weight
through blocks of the type, one row running on into the next, and back to f32: what the type itself costs.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors_file
from PIL import Image, ImageDraw
from record import save, versions

from edgedit import ParallelConfig, Pipeline, embedded
from edgedit.graph import _ggml
from edgedit.models.autoencoder_kl import AutoencoderKL
from edgedit.models.clip import CLIPTextModel
from edgedit.models.flux import FluxTransformer
from edgedit.models.t5 import T5EncoderModel
from edgedit.weights.checkpoint import Checkpoint
from edgedit.weights.convert import converted, to_f32
from edgedit.weights.forms import Form

REQUESTS = (
    ("a red apple", 0),
    ("a castle", 1),
    ("a cute owl", 2),
    ("a purple butterfly", 3),
    ("a photo of a fox", 4),
    ("rocket", 5),
)
PLAIN, QUANTISED = ("f16", "bf16"), ("q8_0", "q6_k", "q5_k", "q4_k", "q4_0")
SHOWN = ("f32", "q8_0", "q6_k", "q4_k", "q4_0")
STEPS = 20
COMPONENTS = {
    "text_encoder": CLIPTextModel,
    "text_encoder_2": T5EncoderModel,
    "transformer": FluxTransformer,
    "vae": AutoencoderKL,
}
LABEL, MARGIN = 36, 4

Pictures = list[np.ndarray]  # uint8 [H, W, 3] each


def draw(model: str | Path, dtype: str, quantised_compute: str = "exact") -> Pictures:
    """One picture of every request."""
    options = {"compute_dtype": dtype, "quantised_compute": quantised_compute, "parallel": ParallelConfig()}
    with Pipeline.from_pretrained(model, **options) as pipeline:
        results = [pipeline(prompt, seed=seed, num_inference_steps=STEPS) for prompt, seed in REQUESTS]
    return [np.asarray(result.images[0]) for result in results]


def write_rounded(directory: Path, dtype: str) -> Path:
    """The embedded model in `directory`, in f32, its linear weights rounded to `dtype`."""
    for source in embedded.path().rglob("*"):
        target = directory / source.relative_to(embedded.path())
        if source.is_dir():
            target.mkdir(parents=True)
        elif source.suffix != ".safetensors":
            target.write_bytes(source.read_bytes())
    for component, model in COMPONENTS.items():
        checkpoint = Checkpoint.open(embedded.path() / component)
        network = model.build_network(model.read_config(embedded.path() / component))
        linear = {name for name, parameter in network.named_parameters() if parameter.role == "linear"}
        shapes = {key: ("F32", checkpoint.shape(key)) for key in checkpoint}
        values = (
            rounded(checkpoint.as_f32(key), dtype, key)
            if model.parameter_name(key) in linear
            else checkpoint.as_f32(key)
            for key in checkpoint
        )
        with (directory / component / checkpoint.file(next(iter(checkpoint))).name).open("wb") as file:
            safetensors_file.write(file, shapes, values)
    return directory


def rounded(values: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """f32 values after a way through blocks of `dtype`, which run over the ends of rows."""
    rows = values.reshape(-1, _ggml.block_size(dtype) if dtype in QUANTISED else values.shape[-1])
    return to_f32(converted(rows, "F32", dtype, name), dtype.upper()).reshape(values.shape)


def shares(dtype: str) -> dict[str, float]:
    """Of the values of all linear weights, how many are in which type when loaded as `dtype`."""
    counts: Counter[str] = Counter()
    for component, model in COMPONENTS.items():
        network = model.build_network(model.read_config(embedded.path() / component))
        for _, parameter in network.named_parameters():
            if parameter.role == "linear":
                counts[Form.of(parameter, dtype, "ggml").dtype] += math.prod(parameter.shape)
    return {kept: round(count / counts.total(), 3) for kept, count in counts.most_common()}


def psnr(ours: np.ndarray, reference: np.ndarray) -> float | None:
    """Decibels, of pictures in uint8; None for equal ones."""
    error = np.mean((ours.astype(np.float64) - reference) ** 2)
    return None if error == 0 else round(10 * math.log10(255**2 / error), 1)


def against(pictures: Pictures, reference: Pictures) -> dict[str, Any]:
    """PSNR of all pictures together, and of each; None for equal ones."""
    each = [psnr(ours, theirs) for ours, theirs in zip(pictures, reference, strict=True)]
    return {"psnr_db": psnr(np.stack(pictures), np.stack(reference)), "of_each_db": each}


def contact_sheet(rows: Mapping[str, Pictures]) -> Image.Image:
    """A row of pictures for each type."""
    size = next(iter(rows.values()))[0].shape[0]
    step = size + MARGIN
    sheet = Image.new("RGB", (LABEL + len(REQUESTS) * step, len(rows) * step + MARGIN), "white")
    pen = ImageDraw.Draw(sheet)
    for row, (name, pictures) in enumerate(rows.items()):
        top = MARGIN + row * step
        pen.text((MARGIN, top + size / 2), name, "black", anchor="lm")
        for column, picture in enumerate(pictures):
            sheet.paste(Image.fromarray(picture), (LABEL + column * step, top))
    return sheet


def measure() -> tuple[dict[str, Any], dict[str, Pictures]]:
    """What is recorded of every type, and the pictures of those that are rounded all through."""
    reference = draw(embedded.path(), "f32")
    shown, types = {"f32": reference}, {}
    for dtype in (*PLAIN, *QUANTISED):
        say(dtype)
        entry = {"loaded": against(draw(embedded.path(), dtype), reference), "shares": shares(dtype)}
        if dtype in QUANTISED:
            entry["loaded_int8"] = against(draw(embedded.path(), dtype, "int8"), reference)
        with tempfile.TemporaryDirectory() as folder:
            shown[dtype] = draw(write_rounded(Path(folder) / "model", dtype), "f32")
        entry["rounded"] = against(shown[dtype], reference)
        types[dtype] = entry
    return types, shown


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="of the record; default: in results/")
    parser.add_argument("--sheet", type=Path, help="where to draw a picture of every type")
    options = parser.parse_args(arguments)
    types, pictures = measure()
    requests = [f"{prompt}, seed {seed}" for prompt, seed in REQUESTS]
    record = {"versions": versions("edgedit", "ggml-python", "numpy"), "steps": STEPS, "requests": requests}
    save("quantisation", {**record, "types": types}, options.output)
    if options.sheet:
        contact_sheet({name: pictures[name] for name in SHOWN}).save(options.sheet, optimize=True)


if __name__ == "__main__":
    main()
