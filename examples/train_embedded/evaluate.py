"""One picture for each caption: how near it is to the picture it was taught, and whether that is the nearest.

python evaluate.py pipeline --kind held_out
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from data import HERE, SIZE_PX, Pictures
from diffusers import FluxPipeline
from networks import TEXT_TOKENS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pipeline", type=Path)
    parser.add_argument("--kind", choices=("base", "recoloured", "held_out"), default="base")
    parser.add_argument("--every", type=int, default=1, help="only every n-th caption")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--sentence", default="{}", help='around the name, for example "a photo of a {}"')
    parser.add_argument("--work", type=Path, default=HERE / "work")
    arguments = parser.parse_args()

    pictures = Pictures.load(arguments.work)
    chosen = pictures.indices(arguments.kind)[:: arguments.every]
    pool = pictures.indices("base") if arguments.kind == "base" else np.arange(len(pictures.images))
    pipeline = FluxPipeline.from_pretrained(str(arguments.pipeline), dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    drawn = []
    for part in np.array_split(chosen, -(-len(chosen) // 48)):
        result = pipeline(
            [arguments.sentence.format(pictures.captions[index][0]) for index in part],
            height=SIZE_PX,
            width=SIZE_PX,
            num_inference_steps=arguments.steps,
            guidance_scale=0.0,
            max_sequence_length=TEXT_TOKENS,
            generator=torch.Generator().manual_seed(0),
            output_type="np",
        )
        drawn.append(result.images.reshape(len(part), -1))
    flat = torch.from_numpy(np.concatenate(drawn)).float()
    wanted = torch.from_numpy(pictures.images.reshape(len(pictures.images), -1)).float() / 255
    psnr = -10 * ((flat - wanted[chosen]) ** 2).mean(1).clamp_min(1e-12).log10()
    nearest = pool[torch.cdist(flat, wanted[pool]).argmin(1).numpy()]
    print(
        f"{arguments.kind}, {len(chosen)} captions, {arguments.steps} steps: "
        f"PSNR median {psnr.median():.1f} dB, p10 {psnr.quantile(0.1):.1f} dB; "
        f"nearest picture right {np.mean(nearest == chosen):.1%}"
    )


if __name__ == "__main__":
    main()
