"""Image models of timm, unmodified: small ones, random weights. See `torchvision_absent` for what timm imports."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.offline import offline
from tests.zoo.torchvision_absent import absent_torchvision

with offline(), absent_torchvision():
    import timm
    from timm.models._efficientnet_builder import decode_arch_def
    from timm.models.efficientnet import EfficientNet
    from timm.models.mlp_mixer import MlpMixer


def images(b: int, t: int) -> dict[str, Tensor]:
    return {"x": torch.randn(b, 3, 64, 64)}


def small_images(b: int, t: int) -> dict[str, Tensor]:
    return {"x": torch.randn(b, 3, 32, 32)}


def create(name: str, **options: Any) -> nn.Module:
    model: nn.Module = timm.create_model(name, num_classes=5, **options)
    return model


def resnet() -> nn.Module:
    return create("resnet18", channels=(8, 8, 16, 16), drop_rate=0.1)


def convnext() -> nn.Module:
    return create("convnext_atto", dims=(8, 16, 16, 32), depths=(1, 1, 2, 1), drop_path_rate=0.1)


def plain_convnext() -> nn.Module:
    """Without random numbers."""
    return create("convnext_atto", dims=(8, 16, 16, 32), depths=(1, 1, 2, 1))


def vit() -> nn.Module:
    return create("vit_tiny_patch16_224", img_size=32, embed_dim=24, num_heads=2, depth=4, drop_path_rate=0.1)


def efficientnet() -> Any:
    arch = ["ds_r1_k3_s1_e1_c8_se0.25"], ["ir_r2_k3_s2_e4_c12_se0.25"], ["ir_r2_k5_s2_e4_c16_se0.25"]
    return EfficientNet(decode_arch_def(arch), num_classes=5, num_features=32, stem_size=8, drop_path_rate=0.1)


def mixer() -> Any:
    return MlpMixer(num_classes=5, img_size=64, embed_dim=16, num_blocks=4, drop_path_rate=0.1)
