"""torchaudio's models as a source, each with few layers or in its smallest published size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .modules import exported, filled, runs
from .sources import Example

_Made = tuple[nn.Module, tuple[Any, ...]]
_r = torch.randn
SAMPLES = 4000

_ENCODER: dict[str, Any] = {
    "encoder_projection_dropout": 0.0,
    "encoder_pos_conv_kernel": 16,
    "encoder_pos_conv_groups": 4,
    "encoder_num_layers": 2,
    "encoder_num_heads": 4,
    "encoder_attention_dropout": 0.0,
    "encoder_ff_interm_features": 64,
    "encoder_ff_interm_dropout": 0.0,
    "encoder_dropout": 0.0,
    "encoder_layer_drop": 0.0,
}
_CONVOLUTIONS = [(32, 10, 5), (32, 3, 2), (32, 3, 2)]


def _models() -> dict[str, Callable[[], _Made]]:
    from torchaudio import models

    def wav2vec2(mode: str, first: bool, bias: bool, aux: int | None) -> nn.Module:
        model: nn.Module = models.wav2vec2_model(
            extractor_mode=mode,
            extractor_conv_layer_config=_CONVOLUTIONS,
            extractor_conv_bias=bias,
            encoder_embed_dim=32,
            encoder_layer_norm_first=first,
            aux_num_out=aux,
            **_ENCODER,
        )
        return model

    def wavlm() -> nn.Module:
        model: nn.Module = models.wavlm_model(
            extractor_mode="group_norm",
            extractor_conv_layer_config=_CONVOLUTIONS,
            extractor_conv_bias=False,
            encoder_embed_dim=32,
            encoder_num_buckets=32,
            encoder_max_distance=64,
            encoder_layer_norm_first=False,
            aux_num_out=None,
            **_ENCODER,
        )
        return model

    def hubert() -> nn.Module:
        model: nn.Module = models.hubert_pretrain_model(
            extractor_mode="group_norm",
            extractor_conv_layer_config=_CONVOLUTIONS,
            extractor_conv_bias=False,
            encoder_embed_dim=32,
            encoder_layer_norm_first=False,
            mask_prob=0.8,
            mask_selection="static",
            mask_other=0.0,
            mask_length=10,
            no_mask_overlap=False,
            mask_min_space=1,
            mask_channel_prob=0.0,
            mask_channel_selection="static",
            mask_channel_other=0.0,
            mask_channel_length=10,
            no_mask_channel_overlap=False,
            mask_channel_min_space=1,
            skip_masked=False,
            skip_nomask=False,
            num_classes=20,
            final_dim=16,
            feature_grad_mult=None,
            **_ENCODER,
        )
        return model

    def rnnt() -> nn.Module:
        model: nn.Module = models.emformer_rnnt_model(
            input_dim=20,
            encoding_dim=32,
            num_symbols=30,
            segment_length=8,
            right_context_length=4,
            time_reduction_input_dim=16,
            time_reduction_stride=4,
            transformer_num_heads=4,
            transformer_ffn_dim=64,
            transformer_num_layers=2,
            transformer_dropout=0.0,
            transformer_activation="gelu",
            transformer_left_context_length=8,
            transformer_max_memory_size=0,
            transformer_weight_init_scale_strategy="depthwise",
            transformer_tanh_on_mem=True,
            symbol_embedding_dim=24,
            num_lstm_layers=2,
            lstm_layer_norm=True,
            lstm_layer_norm_epsilon=1e-3,
            lstm_dropout=0.0,
        )
        return model

    def lengths(*values: int) -> torch.Tensor:
        return torch.tensor(values)

    class Transcribed(nn.Module):
        """The encoder of a transducer, which is no module's ``forward``."""

        def __init__(self) -> None:
            super().__init__()
            self.model = rnnt()

        def forward(self, frames: torch.Tensor, counts: torch.Tensor) -> Any:
            return self.model.transcribe(frames, counts)  # type: ignore[operator]

    class Streamed(nn.Module):
        """A segment of an Emformer, with the state of the one before."""

        def __init__(self) -> None:
            super().__init__()
            self.model = models.Emformer(32, 4, 64, 2, 8, left_context_length=8, right_context_length=4)

        def forward(self, frames: torch.Tensor, counts: torch.Tensor, states: Any = None) -> Any:
            return self.model.infer(frames, counts, states)

    def streamed() -> _Made:
        model = filled(Streamed())
        frames, counts = _r(2, 12, 32), lengths(12, 12)
        return model, (_r(2, 12, 32), counts, runs(model, (frames, counts))[2])

    class Spoken(nn.Module):
        """Tacotron2 without a teacher, which stops by its own decision."""

        def __init__(self) -> None:
            super().__init__()
            self.model = models.Tacotron2(**_TACOTRON)

        def forward(self, tokens: torch.Tensor, counts: torch.Tensor) -> Any:
            return self.model.infer(tokens, counts)

    ids = torch.randint
    return {
        "Conformer": lambda: (models.Conformer(16, 4, 32, 2, 7), (_r(2, 20, 16), lengths(20, 15))),
        "Conformer group norm": lambda: (
            models.Conformer(16, 4, 32, 2, 7, use_group_norm=True, convolution_first=True),
            (_r(2, 20, 16), lengths(20, 15)),
        ),
        "ConvTasNet": lambda: (
            models.ConvTasNet(2, 16, 32, 3, 16, 32, 3, 2),
            (_r(2, 1, SAMPLES),),
        ),
        "ConvTasNet base": lambda: (models.conv_tasnet_base(), (_r(1, 1, SAMPLES),)),
        "DeepSpeech": lambda: (models.DeepSpeech(16, 64, 20), (_r(2, 1, 30, 16),)),
        "Emformer": lambda: (
            models.Emformer(32, 4, 64, 2, 8, left_context_length=8, right_context_length=4),
            (_r(2, 28, 32), lengths(24, 20)),
        ),
        "Emformer memory": lambda: (
            models.Emformer(32, 4, 64, 2, 8, right_context_length=4, max_memory_size=2, tanh_on_mem=True),
            (_r(2, 28, 32), lengths(24, 20)),
        ),
        "Emformer streaming": streamed,
        "HDemucs low": lambda: (models.hdemucs_low(["drums", "vocals"]), (_r(1, 2, 8000),)),
        "HDemucs small": lambda: (
            models.HDemucs(["drums", "vocals"], audio_channels=1, channels=8, dconv_depth=1),
            (_r(2, 1, 8000),),
        ),
        "HuBERT pretraining": lambda: (hubert(), (_r(2, SAMPLES), ids(0, 20, (2, 199)), lengths(SAMPLES, SAMPLES))),
        "RNNT": lambda: (rnnt(), (_r(2, 20, 20), lengths(16, 16), ids(0, 30, (2, 5)), lengths(5, 4))),
        "RNNT transcribe": lambda: (Transcribed(), (_r(2, 20, 20), lengths(16, 12))),
        "SQUIM objective": lambda: (models.squim_objective_base(), (_r(1, 8000),)),
        "SQUIM subjective": lambda: (models.squim_subjective_base(), (_r(1, 8000), _r(1, 8000))),
        "Tacotron2": lambda: (
            models.Tacotron2(**_TACOTRON),
            (ids(0, 30, (2, 9)), lengths(9, 7), _r(2, 20, 6), lengths(6, 5)),
        ),
        "Tacotron2 infer": lambda: (Spoken(), (ids(0, 30, (2, 9)), lengths(9, 7))),
        "Wav2Letter": lambda: (models.Wav2Letter(20, "mfcc", 13), (_r(2, 13, 60),)),
        "Wav2Letter waveform": lambda: (models.Wav2Letter(20, "waveform", 1), (_r(1, 1, 8000),)),
        "WaveRNN": lambda: (
            models.WaveRNN([2, 2, 4], 16, 16, 2, 32, 32, 5, 20, 16, 16),
            (_r(2, 1, 16 * 4), _r(2, 1, 20, 8)),
        ),
        "wav2vec2": lambda: (wav2vec2("group_norm", False, False, 20), (_r(2, SAMPLES),)),
        "wav2vec2 layer norm": lambda: (wav2vec2("layer_norm", True, True, None), (_r(2, SAMPLES),)),
        "wav2vec2 lengths": lambda: (
            wav2vec2("layer_norm", True, True, 20),
            (_r(2, SAMPLES), lengths(SAMPLES, SAMPLES - 700)),
        ),
        "WavLM": lambda: (wavlm(), (_r(2, SAMPLES),)),
    }


_TACOTRON: dict[str, Any] = {
    "n_mels": 20,
    "n_symbol": 30,
    "symbol_embedding_dim": 32,
    "encoder_embedding_dim": 32,
    "encoder_n_convolution": 2,
    "decoder_rnn_dim": 48,
    "decoder_max_step": 10,
    "decoder_dropout": 0.0,
    "attention_rnn_dim": 48,
    "attention_hidden_dim": 16,
    "attention_location_n_filter": 8,
    "attention_location_kernel_size": 7,
    "attention_dropout": 0.0,
    "prenet_dim": 16,
    "postnet_n_convolution": 3,
    "postnet_embedding_dim": 32,
}


class Torchaudio:
    """The modules of ``torchaudio.models``, in evaluation mode."""

    def names(self) -> list[str]:
        """The models."""
        return sorted(_models())

    def variants(self, name: str) -> tuple[str, ...]:
        """One call."""
        return ("base",)

    def make(self, name: str, variant: str) -> Example:
        """The model and its call."""
        torch.manual_seed(0)
        module, args = _models()[name]()
        return Example(filled(module), args, export=exported)
