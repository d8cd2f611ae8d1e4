"""The trained parts as one pipeline directory in diffusers layout, f16, and the list of what it was taught.

python export.py --output pipeline
"""

import argparse
import json
import shutil
from pathlib import Path

from data import COLORS, HERE, Pictures, read_table
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline
from networks import Denoiser, load_tokenizers
from safetensors.torch import load_model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    arguments = parser.parse_args()
    work, output = arguments.work, arguments.output

    clip_tokenizer, t5_tokenizer = load_tokenizers(work)
    model = Denoiser(clip_tokenizer, t5_tokenizer)
    load_model(model, work / "denoiser.safetensors")
    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=1.0),
        vae=AutoencoderKL.from_pretrained(work / "vae").half(),
        text_encoder=model.text_encoder.half(),
        tokenizer=clip_tokenizer,
        text_encoder_2=model.text_encoder_2.half(),
        tokenizer_2=t5_tokenizer,
        transformer=model.transformer.half(),
    )
    pipeline.save_pretrained(output)
    # Readers other than transformers want the original files of the tokenizers too.
    for name in ("tokenizer/vocab.json", "tokenizer/merges.txt", "tokenizer_2/spiece.model"):
        shutil.copyfile(work / name, output / name)

    pictures = Pictures.load(work)
    taught = {
        "names": [pictures.captions[index][0] for index in pictures.indices("base")],
        "colors": list(COLORS),
        "objects": [noun for _, noun in read_table("recoloured.tsv")],
    }
    (output.parent / "prompts.json").write_text(json.dumps(taught, indent=1), encoding="utf-8")
    total = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    print(f"{output}: {total / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
