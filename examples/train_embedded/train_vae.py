"""The autoencoder, then its decoder alone.

    python train_vae.py --minutes 30                  encoder and decoder
    python train_vae.py --minutes 5 --decoder-only    the decoder against fixed latents: sharper, same latents

Writes work/vae and work/latents.safetensors.

Held-out pictures are never shown. The loss is L1 + MSE + half the L1 of the edges + a little KL.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from data import HERE, Pictures
from diffusers import AutoencoderKL
from networks import new_vae
from safetensors.torch import load_file, save_file
from training import Average, Budget, Log, cosine

SHIFT_PX = 6
KL_WEIGHT = 5e-4
BASE_SHARE = 0.7  # of a batch; the recoloured objects are the rest


def to_tensor(images: np.ndarray) -> torch.Tensor:
    """uint8 [N, H, W, 3] -> f32 [N, 3, H, W] in [-1, 1]."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def edges(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return images[..., 1:] - images[..., :-1], images[..., 1:, :] - images[..., :-1, :]


def picture_losses(drawn: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, mean squared error)"""
    mse = F.mse_loss(drawn, wanted)
    edge = sum(F.l1_loss(a, b) for a, b in zip(edges(drawn), edges(wanted), strict=True))
    return F.l1_loss(drawn, wanted) + mse + 0.5 * edge, mse


def psnr(mse: float) -> float:
    """In dB, for pictures in [-1, 1]."""
    return -10 * math.log10(max(mse, 1e-12) / 4)


def augment(images: torch.Tensor, rng: np.random.RandomState) -> torch.Tensor:
    """Half of the batches shifted by up to SHIFT_PX, three in ten mirrored."""
    size = images.shape[-1]
    if rng.rand() < 0.5:
        top, left = rng.randint(0, 2 * SHIFT_PX + 1, 2)
        images = F.pad(images, (SHIFT_PX,) * 4, value=1.0)[..., top : top + size, left : left + size]
    return images.flip(-1) if rng.rand() < 0.3 else images


@torch.no_grad()
def encode_all(vae: AutoencoderKL, images: torch.Tensor) -> torch.Tensor:
    return torch.cat([vae.encode(part).latent_dist.mean for part in images.split(32)]).contiguous()


@torch.no_grad()
def report(vae: AutoencoderKL, images: torch.Tensor, latents: torch.Tensor, pictures: Pictures) -> None:
    for kind in ("base", "held_out"):
        chosen = pictures.indices(kind)[::5]
        drawn = torch.cat([vae.decode(part).sample for part in latents[chosen].split(16)]).clamp(-1, 1)
        each = ((drawn - images[chosen]) ** 2).mean((1, 2, 3))
        print(f"{kind}: PSNR {np.mean([psnr(mse) for mse in each.tolist()]):.1f} dB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--decoder-only", action="store_true", help="continue with work/vae, encoder fixed")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rng = np.random.RandomState(0)

    pictures = Pictures.load(arguments.work)
    images = to_tensor(pictures.images)
    base, recoloured = pictures.indices("base"), pictures.indices("recoloured")
    latents = None
    if arguments.decoder_only:
        vae = AutoencoderKL.from_pretrained(arguments.work / "vae")
        latents = load_file(arguments.work / "latents.safetensors")["latents"]
        trained, peak = list(vae.decoder.parameters()), 1e-3
    else:
        vae = new_vae()
        trained, peak = list(vae.parameters()), 2e-3
    vae.train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(trained, lr=peak, betas=(0.9, 0.98), weight_decay=1e-4)
    average = Average(trained, decay=0.998, ramp=50)
    log = Log(arguments.work / ("decoder_log.csv" if arguments.decoder_only else "vae_log.csv"), every=50)

    budget = Budget(arguments.minutes, arguments.max_steps)
    for step in budget:
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1, (step + 1) / 60) * cosine(budget.fraction())
        count = arguments.batch
        chosen = np.where(
            rng.rand(count) < BASE_SHARE, rng.choice(base, count), rng.choice(recoloured, count)
        )
        wanted = images[chosen] if arguments.decoder_only else augment(images[chosen], rng)
        wanted = wanted.to(memory_format=torch.channels_last)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if latents is None:
                posterior = vae.encode(wanted).latent_dist
                sample = posterior.mean + posterior.std * torch.randn_like(posterior.mean)
            else:
                sample = latents[chosen]
                sample = sample + torch.randn_like(sample) * 0.12 * torch.rand(count, 1, 1, 1)
            drawn = vae.decode(sample).sample
        loss, mse = picture_losses(drawn.float(), wanted)
        if latents is None:
            mean, logvar = posterior.mean.float(), posterior.logvar.float()
            loss = loss + KL_WEIGHT * 0.5 * (mean**2 + logvar.exp() - 1 - logvar).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        average.update(step + 1)
        log.add(budget, loss=loss.item(), psnr_db=psnr(mse.item()))

    average.store()
    vae = vae.to(memory_format=torch.contiguous_format).eval()
    if latents is None:
        latents = encode_all(vae, images)
        shown = latents[np.concatenate([base, recoloured])]
        vae.register_to_config(scaling_factor=1 / shown.std().item(), shift_factor=shown.mean().item())
        save_file({"latents": latents}, arguments.work / "latents.safetensors")
    report(vae, images, latents, pictures)
    vae.save_pretrained(arguments.work / "vae")


if __name__ == "__main__":
    main()
