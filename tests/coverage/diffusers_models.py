"""diffusers as a source: autoencoders, U-Nets, transformers, ControlNets, and the text encoders of its pipelines.

``diffusers_models.json`` has small configurations and inputs of most of them, those of diffusers' own tests
(github.com/huggingface/diffusers, tests/models, Apache-2.0); the others are written here.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .modules import exported, filled, line, runs
from .sources import Example, NotConstructibleError

TABLE = Path(__file__).with_suffix(".json")

_UNET: dict[str, Any] = {
    "block_out_channels": [8, 16],
    "norm_num_groups": 4,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "cross_attention_dim": 8,
    "attention_head_dim": 2,
    "out_channels": 4,
    "in_channels": 4,
    "layers_per_block": 1,
    "sample_size": 16,
}
_NOISE: dict[str, Any] = {
    "sample": {"shape": [2, 4, 16, 16]},
    "timestep": {"values": [10]},
    "encoder_hidden_states": {"shape": [2, 4, 8]},
}
_CONTROL: dict[str, Any] = {
    **{key: value for key, value in _UNET.items() if key not in ("up_block_types", "out_channels", "sample_size")},
    "conditioning_embedding_out_channels": [4, 8],
}
_IDS: dict[str, Any] = {"text_embeds": {"shape": [2, 16]}, "time_ids": {"shape": [2, 6]}}
_WORDS: dict[str, Any] = {"input_ids": {"ids": 90, "shape": [2, 12], "dtype": "int64"}}
_CLIP: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "projection_dim": 24,
}
_CLIP_TEXT: dict[str, Any] = {**_CLIP, "vocab_size": 100, "max_position_embeddings": 77, "eos_token_id": 2}

WRITTEN: Mapping[str, dict[str, Any]] = {
    "UNet2DConditionModel": {"config": _UNET, "inputs": _NOISE},
    "UNet2DConditionModel SDXL": {
        "config": {
            **_UNET,
            "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
            "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
            "transformer_layers_per_block": [1, 2],
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 16 + 6 * 8,
        },
        "inputs": {**_NOISE, "added_cond_kwargs": {"dict": _IDS}},
    },
    "UNet2DConditionModel classes": {
        "config": {
            **_UNET,
            "num_class_embeds": 10,
            "dual_cross_attention": False,
            "resnet_time_scale_shift": "scale_shift",
        },
        "inputs": {**_NOISE, "class_labels": {"values": [3, 7]}},
    },
    "UNet2DConditionModel masked": {
        "config": {**_UNET, "only_cross_attention": True, "encoder_hid_dim": 12, "encoder_hid_dim_type": "text_proj"},
        "inputs": {
            **_NOISE,
            "encoder_hidden_states": {"shape": [2, 4, 12]},
            "encoder_attention_mask": {"values": [[1, 1, 1, 0], [1, 1, 0, 0]]},
        },
    },
    "UNet2DConditionModel simple": {
        "config": {
            **_UNET,
            "attention_head_dim": 4,
            "down_block_types": ["ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"],
            "mid_block_type": "UNetMidBlock2DSimpleCrossAttn",
            "up_block_types": ["SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"],
        },
        "inputs": _NOISE,
    },
    "I2VGenXLUNet": {
        "config": {
            **_UNET,
            "down_block_types": ["CrossAttnDownBlock3D", "DownBlock3D"],
            "up_block_types": ["UpBlock3D", "CrossAttnUpBlock3D"],
        },
        "inputs": {
            "sample": {"shape": [1, 4, 2, 16, 16]},
            "timestep": {"values": [10]},
            "fps": {"values": [7]},
            "image_latents": {"shape": [1, 4, 2, 16, 16]},
            "image_embeddings": {"shape": [1, 8]},
            "encoder_hidden_states": {"shape": [1, 4, 8]},
        },
    },
    "StableCascadeUNet": {
        "config": {
            "in_channels": 4,
            "out_channels": 4,
            "timestep_ratio_embedding_dim": 8,
            "conditioning_dim": 16,
            "block_out_channels": [16, 16],
            "num_attention_heads": [0, 4],
            "down_num_layers_per_block": [1, 1],
            "up_num_layers_per_block": [1, 1],
            "down_blocks_repeat_mappers": [1, 1],
            "up_blocks_repeat_mappers": [1, 1],
            "block_types_per_layer": [
                ["SDCascadeResBlock", "SDCascadeTimestepBlock"],
                ["SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"],
            ],
            "clip_text_in_channels": 16,
            "clip_text_pooled_in_channels": 16,
            "clip_image_in_channels": 16,
            "clip_seq": 2,
            "self_attn": [False, True],
            "switch_level": [False],
        },
        "inputs": {
            "sample": {"shape": [2, 4, 8, 8]},
            "timestep_ratio": {"values": [0.3, 0.7]},
            "clip_text_pooled": {"shape": [2, 1, 16]},
            "clip_text": {"shape": [2, 5, 16]},
            "clip_img": {"shape": [2, 1, 16]},
        },
    },
    "UVit2DModel": {
        "config": {
            "hidden_size": 32,
            "use_bias": False,
            "hidden_dropout": 0.0,
            "cond_embed_dim": 16,
            "micro_cond_encode_dim": 4,
            "micro_cond_embed_dim": 20,
            "encoder_hidden_size": 16,
            "vocab_size": 32,
            "codebook_size": 24,
            "in_channels": 32,
            "block_out_channels": 32,
            "num_res_blocks": 1,
            "downsample": True,
            "upsample": True,
            "block_num_heads": 4,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "attention_dropout": 0.0,
            "intermediate_size": 48,
            "layer_norm_eps": 1e-6,
            "ln_elementwise_affine": True,
        },
        "inputs": {
            "input_ids": {"ids": 24, "shape": [2, 8, 8], "dtype": "int64"},
            "encoder_hidden_states": {"shape": [2, 5, 16]},
            "pooled_text_emb": {"shape": [2, 16]},
            "micro_conds": {"shape": [2, 5]},
        },
    },
    "ControlNetModel": {
        "config": _CONTROL,
        "inputs": {**_NOISE, "controlnet_cond": {"shape": [2, 3, 32, 32]}, "conditioning_scale": 0.7},
    },
    "ControlNetModel guess": {
        "config": _CONTROL,
        "inputs": {**_NOISE, "controlnet_cond": {"shape": [2, 3, 32, 32]}, "guess_mode": True},
    },
    "ControlNetUnionModel": {
        "config": {
            **_CONTROL,
            "num_control_type": 2,
            "num_trans_channel": 8,
            "num_trans_head": 2,
            "num_proj_channel": 8,
            "addition_time_embed_dim": 4,
            "addition_embed_type": "text_time",
            "projection_class_embeddings_input_dim": 16 + 6 * 4,
            "conditioning_embedding_out_channels": [8, 8],
        },
        "inputs": {
            **_NOISE,
            "controlnet_cond": [{"shape": [2, 3, 32, 32]}],
            "control_type": {"values": [[0.0, 1.0], [0.0, 1.0]]},
            "control_type_idx": [1],
            "conditioning_scale": 1.0,
            "added_cond_kwargs": {"dict": _IDS},
        },
    },
    "SparseControlNetModel": {
        "config": {
            "in_channels": 4,
            "conditioning_channels": 4,
            "down_block_types": ["CrossAttnDownBlockMotion", "DownBlockMotion"],
            "block_out_channels": [8, 16],
            "layers_per_block": 1,
            "norm_num_groups": 4,
            "cross_attention_dim": 8,
            "num_attention_heads": 2,
            "motion_num_attention_heads": 2,
            "conditioning_embedding_out_channels": [4, 8],
            "use_simplified_condition_embedding": True,
        },
        "inputs": {
            "sample": {"shape": [1, 4, 2, 16, 16]},
            "timestep": {"values": [10]},
            "encoder_hidden_states": {"shape": [2, 4, 8]},
            "controlnet_cond": {"shape": [1, 4, 2, 16, 16]},
            "conditioning_mask": {"shape": [1, 1, 2, 16, 16]},
        },
    },
    "SD3ControlNetModel": {
        "config": {
            "sample_size": 16,
            "patch_size": 2,
            "in_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "joint_attention_dim": 24,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 16,
            "out_channels": 4,
            "pos_embed_max_size": 16,
        },
        "inputs": {
            "hidden_states": {"shape": [2, 4, 16, 16]},
            "controlnet_cond": {"shape": [2, 4, 16, 16]},
            "encoder_hidden_states": {"shape": [2, 5, 24]},
            "pooled_projections": {"shape": [2, 16]},
            "timestep": {"values": [3, 500]},
        },
    },
    "FluxControlNetModel": {
        "config": {
            "patch_size": 1,
            "in_channels": 4,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 24,
            "pooled_projection_dim": 16,
            "axes_dims_rope": [4, 4, 8],
            "guidance_embeds": True,
        },
        "inputs": {
            "hidden_states": {"shape": [2, 16, 4]},
            "controlnet_cond": {"shape": [2, 16, 4]},
            "encoder_hidden_states": {"shape": [2, 5, 24]},
            "pooled_projections": {"shape": [2, 16]},
            "timestep": {"values": [0.3, 0.8]},
            "img_ids": {"ids": 4, "shape": [16, 3], "dtype": "float32"},
            "txt_ids": {"ids": 1, "shape": [5, 3], "dtype": "float32"},
            "guidance": {"values": [3.5, 3.5]},
        },
    },
    "T2IAdapter": {
        "config": {"channels": [8, 16], "num_res_blocks": 1, "downscale_factor": 8, "adapter_type": "full_adapter"},
        "inputs": {"x": {"shape": [2, 3, 32, 32]}},
    },
    "T2IAdapter light": {
        "config": {"channels": [8, 16], "num_res_blocks": 1, "downscale_factor": 8, "adapter_type": "light_adapter"},
        "inputs": {"x": {"shape": [2, 3, 32, 32]}},
    },
    "Transformer2DModel": {
        "config": {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 8,
            "norm_num_groups": 4,
            "cross_attention_dim": 12,
        },
        "inputs": {"hidden_states": {"shape": [2, 8, 8, 8]}, "encoder_hidden_states": {"shape": [2, 5, 12]}},
    },
    "Transformer2DModel words": {
        "config": {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_vector_embeds": 20,
            "sample_size": 4,
            "cross_attention_dim": 12,
        },
        "inputs": {
            "hidden_states": {"ids": 20, "shape": [2, 16], "dtype": "int64"},
            "encoder_hidden_states": {"shape": [2, 5, 12]},
        },
    },
    "T5FilmDecoder": {
        "config": {
            "input_dims": 8,
            "targets_length": 12,
            "d_model": 16,
            "num_layers": 2,
            "num_heads": 2,
            "d_kv": 8,
            "d_ff": 24,
            "dropout_rate": 0.0,
        },
        "inputs": {
            "encodings_and_masks": [
                {"tuple": [{"shape": [2, 5, 16]}, {"all": 1, "shape": [2, 5], "dtype": "int64"}]},
            ],
            "decoder_input_tokens": {"shape": [2, 12, 8]},
            "decoder_noise_time": {"values": [0.2, 0.6]},
        },
    },
    "StableAudioDiTModel": {
        "config": {
            "sample_size": 16,
            "in_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "num_key_value_attention_heads": 2,
            "out_channels": 4,
            "cross_attention_dim": 16,
            "time_proj_dim": 16,
            "global_states_input_dim": 16,
            "cross_attention_input_dim": 12,
        },
        "inputs": {
            "hidden_states": {"shape": [2, 4, 16]},
            "timestep": {"values": [0.2, 0.9]},
            "encoder_hidden_states": {"shape": [2, 5, 12]},
            "global_hidden_states": {"shape": [2, 1, 16]},
        },
    },
    "AutoencoderOobleck": {
        "config": {
            "encoder_hidden_size": 12,
            "decoder_channels": 12,
            "decoder_input_channels": 6,
            "audio_channels": 2,
            "downsampling_ratios": [2, 4],
            "channel_multiples": [1, 2],
        },
        "inputs": {"sample": {"shape": [2, 2, 24]}},
    },
    "AutoencoderKLQwenImage": {
        "config": {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 2], "num_res_blocks": 1, "temperal_downsample": [False]},
        "inputs": {"sample": {"shape": [1, 3, 1, 16, 16]}},
    },
    "transformers CLIPTextModel": {"config": _CLIP_TEXT, "inputs": _WORDS},
    "transformers CLIPTextModelWithProjection": {"config": _CLIP_TEXT, "inputs": _WORDS},
    "transformers CLIPVisionModelWithProjection": {
        "config": {**_CLIP, "image_size": 32, "patch_size": 8},
        "inputs": {"pixel_values": {"shape": [2, 3, 32, 32]}},
    },
    "transformers T5EncoderModel": {
        "config": {
            "vocab_size": 100,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "feed_forward_proj": "gated-gelu",
        },
        "inputs": {**_WORDS, "attention_mask": {"all": 1, "shape": [2, 12], "dtype": "int64"}},
    },
    "transformers UMT5EncoderModel": {
        "config": {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
        "inputs": {**_WORDS, "attention_mask": {"all": 1, "shape": [2, 12], "dtype": "int64"}},
    },
    "transformers ClapTextModelWithProjection": {
        "config": {
            "vocab_size": 100,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "projection_dim": 24,
        },
        "inputs": _WORDS,
    },
    "transformers SpeechT5HifiGan": {
        "config": {
            "model_in_dim": 16,
            "upsample_initial_channel": 32,
            "upsample_rates": [4, 4],
            "upsample_kernel_sizes": [8, 8],
            "resblock_kernel_sizes": [3, 7],
            "resblock_dilation_sizes": [[1, 3], [1, 3]],
        },
        "inputs": {"spectrogram": {"shape": [2, 12, 16]}},
    },
}
"""By class (and what is special about the case): its configuration and a call, as the table writes them."""


class Diffusers:
    """Models of the table and those written here."""

    def names(self) -> list[str]:
        """The classes, those that the installed diffusers has."""
        import diffusers

        return sorted(
            name for name in _cases() if name.startswith("transformers ") or hasattr(diffusers, name.split(" ")[0])
        )

    def variants(self, name: str) -> tuple[str, ...]:
        """One call."""
        return ("base",)

    def make(self, name: str, variant: str) -> Example:
        """The model with random weights and its call."""
        case = _cases()[name]
        torch.manual_seed(0)
        try:
            module = filled(_model(name, case["config"]))
            torch.manual_seed(2)
            kwargs = {key: _value(value) for key, value in case["inputs"].items()}
            if "return_dict" in inspect.signature(module.forward).parameters:
                kwargs["return_dict"] = False  # diffusers tells PyTorch not enough of the classes of its results
            runs(module, (), kwargs)
        except Exception as error:
            raise NotConstructibleError(line(error)) from error
        return Example(module, (), kwargs, exported)


def _cases() -> dict[str, dict[str, Any]]:
    return {**json.loads(TABLE.read_text()), **WRITTEN}


def _model(name: str, config: dict[str, Any]) -> nn.Module:
    library, words = (name.split(" ")[0], name.split(" ")[1:]) if name.startswith("transformers ") else ("", [name])
    model: nn.Module
    if library:
        import transformers

        made = getattr(transformers, words[0])
        model = made(made.config_class(**config))
    else:
        import diffusers

        model = getattr(diffusers, name.split(" ")[0])(**config)
    return model


def _value(written: Any) -> Any:
    """An input as the table writes it: a tensor of a shape or of values, or what stands there."""
    if isinstance(written, list):
        return [_value(each) for each in written]
    if not isinstance(written, dict):
        return written
    if "dict" in written:
        return {int(key) if key.isdigit() else key: _value(value) for key, value in written["dict"].items()}
    if "tuple" in written:
        return tuple(_value(each) for each in written["tuple"])
    dtype = getattr(torch, written["dtype"]) if "dtype" in written else None
    if "values" in written:
        return torch.tensor(written["values"], dtype=dtype)
    if "all" in written:
        return torch.full(written["shape"], written["all"], dtype=dtype)
    if "ids" in written:
        return torch.randint(0, written["ids"], written["shape"]).to(dtype)
    return torch.randn(written["shape"]).to(dtype or torch.float32)
