"""The networks of the embedded pipeline: plain diffusers and transformers classes, sized for 64x64 emoji."""

from pathlib import Path

import torch
from data import SIZE_PX
from diffusers import AutoencoderKL, FluxTransformer2DModel
from torch import nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
)

TEXT_TOKENS = 16
TEXT_DIM = 128
LATENT_CHANNELS = 16
# Each token of the transformer is a 2x2 patch of the latent: 64x64 pixels are 4x4 tokens.
PATCH = 2
GRID = SIZE_PX // 8 // PATCH


def load_tokenizers(work: Path) -> tuple[CLIPTokenizer, T5TokenizerFast]:
    return CLIPTokenizer.from_pretrained(work / "tokenizer"), T5TokenizerFast.from_pretrained(
        work / "tokenizer_2"
    )


def new_vae() -> AutoencoderKL:
    """1.1 M parameters; 64x64x3 pixels <-> 8x8x16 latents."""
    return AutoencoderKL(
        block_out_channels=(24, 48, 64, 64),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=8,
        layers_per_block=1,
        sample_size=SIZE_PX,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=True,
    )


def new_clip(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=TEXT_DIM,
            intermediate_size=2 * TEXT_DIM,
            num_hidden_layers=1,
            num_attention_heads=4,
            max_position_embeddings=TEXT_TOKENS,
            hidden_act="quick_gelu",
            projection_dim=TEXT_DIM,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            attention_dropout=0.0,
        )
    )


def new_t5(tokenizer: T5TokenizerFast) -> T5EncoderModel:
    return T5EncoderModel(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=TEXT_DIM,
            d_kv=32,
            d_ff=2 * TEXT_DIM,
            num_layers=1,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            pad_token_id=0,
            eos_token_id=1,
            is_encoder_decoder=False,
            use_cache=False,
        )
    )


def new_transformer() -> FluxTransformer2DModel:
    """5.2 M parameters; 2 double and 4 single blocks of 4 heads x 48."""
    return FluxTransformer2DModel(
        patch_size=1,
        in_channels=LATENT_CHANNELS * PATCH * PATCH,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=48,
        num_attention_heads=4,
        joint_attention_dim=TEXT_DIM,
        pooled_projection_dim=TEXT_DIM,
        guidance_embeds=False,
        axes_dims_rope=(8, 20, 20),
    )


class Denoiser(nn.Module):
    """Everything that is trained against the flow: both text encoders and the transformer."""

    def __init__(self, clip_tokenizer: CLIPTokenizer, t5_tokenizer: T5TokenizerFast) -> None:
        super().__init__()
        self.text_encoder = new_clip(clip_tokenizer)
        self.text_encoder_2 = new_t5(t5_tokenizer)
        self.transformer = new_transformer()
        self.register_buffer("text_ids", torch.zeros(TEXT_TOKENS, 3), persistent=False)
        rows, columns = torch.meshgrid(torch.arange(GRID), torch.arange(GRID), indexing="ij")
        image_ids = torch.stack([torch.zeros_like(rows), rows, columns], -1).reshape(-1, 3).float()
        self.register_buffer("image_ids", image_ids, persistent=False)

    def zero_modulation(self) -> None:
        """Blocks start as the identity and the output as zero, as in DiT."""
        for name, module in self.transformer.named_modules():
            if name.endswith(
                ("norm.linear", "norm1.linear", "norm1_context.linear", "norm_out.linear", "proj_out")
            ):
                nn.init.zeros_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.text_encoder_2.shared.weight, std=1.0)

    def forward(
        self, tokens: torch.Tensor, clip_ids: torch.Tensor, t5_ids: torch.Tensor, sigma: torch.Tensor
    ) -> torch.Tensor:
        """tokens [B, 16, 64] at noise level sigma [B] -> the flow, noise - picture, of the same shape."""
        return self.transformer(
            hidden_states=tokens,
            encoder_hidden_states=self.text_encoder_2(input_ids=t5_ids)[0],
            pooled_projections=self.text_encoder(input_ids=clip_ids).pooler_output,
            timestep=sigma,
            img_ids=self.image_ids,
            txt_ids=self.text_ids,
            return_dict=False,
        )[0]


def patchify(latents: torch.Tensor) -> torch.Tensor:
    """[B, C, 8, 8] -> [B, 16, C * 4], channels slowest within a token."""
    batch, channels = latents.shape[:2]
    patches = latents.reshape(batch, channels, GRID, PATCH, GRID, PATCH).permute(0, 2, 4, 1, 3, 5)
    return patches.reshape(batch, GRID * GRID, channels * PATCH * PATCH)
