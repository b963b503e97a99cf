"""Small models of torchvision, timm and transformers with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Architecture:
    """A model, and its arguments for a batch of some size."""

    package: str
    make: Callable[[], Any]
    arguments: Callable[[int], dict[str, Any]]


def need(package: str) -> None:
    """Skip the test where a package is absent."""
    _declare_ops_of_torchvision()  # timm and transformers import it too
    pytest.importorskip(package, reason=f"{package} is not installed: run `make test-torch`")


def _declare_ops_of_torchvision() -> None:
    """Declare ops that torchvision registers shapes for, where its native half does not load.

    It does not beside a torch that was built for other hardware. No model here uses these ops.
    """
    import torch

    for name in ("nms", "qnms"):
        try:
            torch.library.define(
                f"torchvision::{name}", "(Tensor dets, Tensor scores, float threshold) -> Tensor"
            )
        except RuntimeError:
            return  # it did load


def _image(size: int = 64, name: str = "x") -> Callable[[int], dict[str, Any]]:
    def arguments(batch: int) -> dict[str, Any]:
        import torch

        return {name: torch.randn(batch, 3, size, size)}

    return arguments


def _vision(name: str, **settings: Any) -> Architecture:
    def make() -> Any:
        import torchvision

        return getattr(torchvision.models, name)(num_classes=10, **settings)

    return Architecture("torchvision", make, _image())


def _timm(name: str, **settings: Any) -> Architecture:
    def make() -> Any:
        import timm

        return timm.create_model(name, num_classes=10, **settings)

    return Architecture("timm", make, _image())


def _tokens(batch: int) -> dict[str, Any]:
    import torch

    mask = torch.ones(batch, 12, dtype=torch.int64)
    mask[0, 9:] = 0
    return {"input_ids": torch.randint(0, 90, (batch, 12)), "attention_mask": mask}


def _hugging(
    model: str, config: str, arguments: Callable[[int], dict[str, Any]], **settings: Any
) -> Architecture:
    def make() -> Any:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))

    return Architecture("transformers", make, arguments)


_SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 64}

ARCHITECTURES: dict[str, Architecture] = {
    "resnet18": _vision("resnet18"),
    "mobilenet_v3_small": _vision("mobilenet_v3_small"),
    "squeezenet1_1": _vision("squeezenet1_1"),
    "shufflenet_v2": _vision("shufflenet_v2_x0_5"),
    "vit_tiny": _timm("vit_tiny_patch16_224", img_size=64, depth=2),
    "convnext_atto": _timm("convnext_atto", depths=(1, 1, 2, 1)),
    "efficientnet_lite0": _timm("efficientnet_lite0"),
    "mixer": _timm("mixer_s32_224", img_size=64),
    "ghostnet": _timm("ghostnet_050"),
    "bert": _hugging("BertModel", "BertConfig", _tokens, intermediate_size=64, **_SMALL),
    "gpt2": _hugging(
        "GPT2Model",
        "GPT2Config",
        _tokens,
        vocab_size=99,
        n_embd=32,
        n_layer=2,
        n_head=4,
        use_cache=False,
    ),
    "llama": _hugging(
        "LlamaForCausalLM",
        "LlamaConfig",
        _tokens,
        intermediate_size=64,
        num_key_value_heads=2,
        use_cache=False,
        **_SMALL,
    ),
    "t5_encoder": _hugging(
        "T5EncoderModel",
        "T5Config",
        _tokens,
        vocab_size=99,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        use_cache=False,
    ),
    "segformer": _hugging(
        "SegformerModel",
        "SegformerConfig",
        _image(name="pixel_values"),
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 24, 32],
    ),
    "clip_vision": _hugging(
        "CLIPVisionModel",
        "CLIPVisionConfig",
        _image(name="pixel_values"),
        intermediate_size=64,
        patch_size=16,
        **_VISION,
    ),
}
