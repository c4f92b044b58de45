"""Models of transformers that see or hear, unmodified: tiny configurations, random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.zoo.case import ids
from tests.zoo.offline import offline

with offline():
    from transformers import (
        CLIPConfig,
        CLIPModel,
        ViTConfig,
        ViTForImageClassification,
        Wav2Vec2Config,
        Wav2Vec2ForCTC,
        WhisperConfig,
        WhisperForConditionalGeneration,
    )

V, D, H = 64, 16, 2  # vocabulary, width, heads


def pixels(b: int, t: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(b, 3, 16, 16), "labels": torch.randint(2, (b,))}


def pixels_and_words(b: int, t: int) -> dict[str, object]:
    return {
        "input_ids": ids(b, t, V),
        "pixel_values": torch.randn(b, 3, 16, 16),
        "attention_mask": torch.ones(b, t, dtype=torch.long),
        "return_loss": True,
    }


def sound_to_words(b: int, t: int) -> dict[str, Tensor]:
    return {"input_features": torch.randn(b, 8, 40), "labels": ids(b, t, V)}


def wave_to_words(b: int, t: int) -> dict[str, Tensor]:
    return {"input_values": torch.randn(b, 400 * t), "labels": ids(b, 2, V)}


def vit() -> Any:
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=D,
            num_hidden_layers=3,
            num_attention_heads=H,
            intermediate_size=2 * D,
            image_size=16,
            patch_size=4,
        )
    )


def clip() -> Any:
    both = {"hidden_size": D, "intermediate_size": 2 * D, "num_hidden_layers": 2, "num_attention_heads": H}
    text = {**both, "vocab_size": V, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2}
    vision = {**both, "image_size": 16, "patch_size": 4}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=D))


def whisper() -> Any:
    config = WhisperConfig(
        vocab_size=V,
        d_model=D,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=H,
        decoder_attention_heads=H,
        encoder_ffn_dim=2 * D,
        decoder_ffn_dim=2 * D,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=32,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return WhisperForConditionalGeneration(config)


def wav2vec2() -> Any:
    config = Wav2Vec2Config(
        vocab_size=V,
        hidden_size=D,
        num_hidden_layers=3,
        num_attention_heads=H,
        intermediate_size=2 * D,
        conv_dim=(8, 8),
        conv_kernel=(10, 3),
        conv_stride=(5, 2),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        apply_spec_augment=False,
        layerdrop=0.0,
    )
    return Wav2Vec2ForCTC(config)
