"""The models of the CPU benchmark, with random weights: architectures at the sizes that are deployed on CPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tkc.bench.cpu_networks import Detector, MobileNetV3, UNet, three_layers
from tkc.bench.models import tell_tokens_apart

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class CpuCase:
    """A model and the inputs of one size, by name; ``exports`` says whether ONNX Runtime can be given it."""

    model: nn.Module
    inputs: Mapping[str, torch.Tensor]
    exports: bool = True


class _First(nn.Module):
    """A model of transformers, which returns its first output alone."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.model(**inputs, **self.options, return_dict=False)[0],)


class _Pixels(_First):
    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor]:  # type: ignore[override]
        return super().forward(pixel_values=pixel_values)


class _Tokens(_First):
    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor]:  # type: ignore[override]
        return super().forward(input_ids=input_ids)


class _Speech(_First):
    def forward(  # type: ignore[override]
        self, input_features: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> tuple[torch.Tensor]:
        return super().forward(input_features=input_features, decoder_input_ids=decoder_input_ids)


def _image(pixels: int) -> torch.Tensor:
    return torch.randn(1, 3, pixels, pixels)


def _trained(model: nn.Module) -> nn.Module:
    """With statistics and filters as training leaves them, so that no layer makes what it is given vanish."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
            nn.init.normal_(module.running_mean, std=0.1)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.8, 1.2)  # type: ignore[arg-type]
    return model


def _vision(config: str, **options: Any) -> Callable[[], CpuCase]:
    def made() -> CpuCase:
        from transformers import AutoConfig, AutoModelForImageClassification

        model = AutoModelForImageClassification.from_config(AutoConfig.for_model(config, **options))
        return CpuCase(_Pixels(_trained(model)), {"pixel_values": _image(224)})

    return made


def _network(network: Callable[[], nn.Module], pixels: int) -> Callable[[], CpuCase]:
    return lambda: CpuCase(_trained(network()), {"image": _image(pixels)})


def _encoder(config: str, tokens: int, **options: Any) -> Callable[[], CpuCase]:
    def made() -> CpuCase:
        from transformers import AutoConfig, AutoModel

        model = AutoModel.from_config(AutoConfig.for_model(config, **options))
        tell_tokens_apart(model)
        return CpuCase(_Tokens(model), {"input_ids": torch.randint(0, 1000, (1, tokens))})

    return made


def _llama_config(layers: int, most: int) -> Any:
    """Llama-3.2-1B's shape with fewer layers, and a small vocabulary."""
    from transformers import LlamaConfig

    return LlamaConfig(  # type: ignore[call-arg]  # made a dataclass at run time
        vocab_size=1024,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=most,
        rope_theta=500000.0,
    )


def _llama_prefill() -> CpuCase:
    from transformers import LlamaModel

    model = LlamaModel(_llama_config(4, 512))
    tell_tokens_apart(model)
    return CpuCase(_Tokens(model, use_cache=False), {"input_ids": torch.randint(0, 1024, (1, 128))})


def _llama_decode() -> CpuCase:
    from transformers import LlamaForCausalLM

    from tkc.bench.decoding import DecodeStep

    step = DecodeStep(LlamaForCausalLM(_llama_config(4, 512)), 1, 512)
    return CpuCase(
        step, {"input_ids": torch.randint(0, 1024, (1, 1)), "position": torch.tensor(511)}, exports=False
    )  # ONNX has no state


def _whisper() -> CpuCase:
    from transformers import WhisperConfig, WhisperModel

    config: Any = WhisperConfig(
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
    )
    inputs = {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": torch.randint(0, 1000, (1, 16))}
    return CpuCase(_Speech(WhisperModel(config), use_cache=False), inputs)


_EFFICIENTNET_B0 = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "image_size": 224, "hidden_dim": 1280}
_MINILM = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536, "num_hidden_layers": 6}

CPU_MODELS: dict[str, Callable[[], CpuCase]] = {
    "resnet-50": _vision("resnet"),
    "mobilenet-v3": _network(MobileNetV3, 224),
    "efficientnet-b0": _vision("efficientnet", **_EFFICIENTNET_B0),
    "convnext-t": _vision("convnext"),
    "detector": _network(Detector, 320),
    "unet": _network(UNet, 128),
    "bert-base-8": _encoder("bert", 8),
    "bert-base-128": _encoder("bert", 128),
    "distilbert-8": _encoder("distilbert", 8),
    "distilbert-128": _encoder("distilbert", 128),
    "minilm-8": _encoder("bert", 8, **_MINILM),
    "minilm-128": _encoder("bert", 128, **_MINILM),
    "llama-1b-decode": _llama_decode,
    "llama-1b-prefill": _llama_prefill,
    "whisper-tiny": _whisper,
    "three-layers": lambda: CpuCase(three_layers(), {"input": torch.randn(1, 16)}),
}
"""What is measured, by name; numbers behind encoders are tokens. Llama-3.2-1B's shape has four layers here."""


def cpu_case(name: str) -> CpuCase:
    """The case ``name`` of :data:`CPU_MODELS` with the same random weights and inputs each time."""
    torch.manual_seed(0)
    case = CPU_MODELS[name]()
    case.model.eval()
    return case
