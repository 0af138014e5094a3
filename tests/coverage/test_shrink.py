"""Small configurations keep in step what is written layer by layer, and calls get the arguments that models ask for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from .inputs import found
from .layers import Layers, sections
from .shrink import configurations, described, filled, shrunk
from .sources import NotConstructibleError
from .transformers_models import Transformers


def test_fields_written_layer_by_layer_shrink_together() -> None:
    """Lists of all layers, lists of some, a dictionary by layer and a number of first layers name the same layers."""
    fields = {
        "num_hidden_layers": 12,
        "layer_types": ["sliding", "sliding", "full"] * 4,
        "intermediate_size": [1024] * 12,
        "first_k_dense_replace": 4,
        "deepstack_visual_indexes": [7, 9],
        "per_layer_config": {"02": {"head_dim": 256}, "05": {"head_dim": 256}, "08": {"head_dim": 256}},
        "head_dim": 128,
        "bos_token_ids": [1, 2],
    }
    small = shrunk(fields)
    # Each is the first of a kind: 2 is full and has a head of its own, 4 comes after the first four, 7 is indexed.
    assert Layers(fields).kept == [0, 2, 4, 7]
    assert small == {
        "num_hidden_layers": 4,
        "layer_types": ["sliding", "full", "sliding", "sliding"],
        "intermediate_size": [128] * 4,
        "first_k_dense_replace": 2,
        "deepstack_visual_indexes": [3],
        "per_layer_config": {1: {"head_dim": 32}},  # twice the others', as by default
        "head_dim": 16,
        "bos_token_ids": [1, 2],
    }


def test_layers_that_share_their_keys_follow_one_of_their_kind() -> None:
    """The last layers read keys of the last layer before them of their own kind."""
    fields = {"num_hidden_layers": 8, "layer_types": ["sliding", "full"] * 4, "num_kv_shared_layers": 3}
    small = shrunk(fields)
    assert small["layer_types"] == ["sliding", "full", "full", "sliding"]
    assert (small["num_hidden_layers"], small["num_kv_shared_layers"]) == (4, 2)


def test_a_layer_whose_source_goes_is_its_own() -> None:
    """Layers that name the layer whose keys they read, and kinds that repeat."""
    fields = {
        "num_hidden_layers": 6,
        "layer_types": ["a", "b", "b", "c"] + ["c"] * 2,
        "source_layers": [0, 0, 2, 2, 2, 5],
    }
    small = shrunk(fields)
    assert (small["layer_types"], small["source_layers"]) == (["a", "b", "b", "c", "c"], [0, 0, 2, 2, 4])
    assert Layers({"num_hidden_layers": 9, "block_types": ["r", "r", "a"]}).kept == [0, 1, 2]
    assert Layers({**fields, "first_k_dense_replace": 3}, copies=0).kept == [0, 1, 3]


def test_every_stage_that_is_read_stays() -> None:
    """A projection has as many inputs as stages are read. Stages of several layers each are left."""
    fields = {
        "num_hidden_layers": 12,
        "stage_names": ["stem", *(f"stage{index}" for index in range(1, 13))],
        "out_features": ["stage2", "stage5", "stage12"],
        "out_indices": [2, 5, 12],
    }
    assert shrunk(fields) == {
        "num_hidden_layers": 3,
        "stage_names": ["stem", "stage1", "stage2", "stage3"],
        "out_features": None,
        "out_indices": [1, 2, 3],
    }
    stages = {"num_layers": 3, "depths": [2, 6, 2], "out_indices": [1, 2, 3]}
    assert shrunk(stages) == {"num_layers": 3, "depths": [1, 1, 1], "out_indices": [1, 2, 3]}


def test_two_layers_of_each_kind_and_periods() -> None:
    """Weights that layers share need two of them; kinds by a period are kept by a smaller one."""
    fields = {"num_hidden_layers": 6, "layer_types": ["linear", "linear", "hybrid"] * 2, "attn_layer_period": 8}
    assert Layers(fields, copies=2).kept == [0, 1, 2, 5]
    assert shrunk({**fields, "attn_layer_offset": 4})["attn_layer_offset"] == 1
    assert shrunk(fields)["attn_layer_period"] == 2


def test_a_head_of_two_parts_and_sections_of_what_rotates() -> None:
    """Widths that add up do so when they are small."""
    small = shrunk({"head_dim": 256, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64})
    assert small == {"head_dim": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16}
    assert sections([8, 12, 12], 8) == [2, 3, 3]
    rope = {"mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}
    assert sum(shrunk({"rope_parameters": rope})["rope_parameters"]["mrope_section"]) == 4


def test_sizes_where_the_default_has_none() -> None:
    """Only where it has none; kinds of layers, experts and the indices of layers among them."""
    fields = {"num_hidden_layers": 3, "layer_types": None, "num_experts_per_tok": None, "hidden_size": 96}
    assert filled(fields | {"attn_layer_indices": None, "unknown": None}) == {
        "num_hidden_layers": 3,
        "layer_types": ["full_attention"] * 3,
        "num_experts_per_tok": 2,
        "hidden_size": 96,
        "attn_layer_indices": [1],
        "unknown": None,
    }


def test_what_models_read_beside_their_fields() -> None:
    """Sections that the configuration's class names and its default has not."""
    from transformers import CONFIG_MAPPING

    default = CONFIG_MAPPING["glm4v_text"]()
    assert described(default, sections=True)["rope_parameters"]["mrope_section"] == [2, 3, 3]
    assert "mrope_section" not in described(default)["rope_parameters"]  # models with sections of their own are first


class _Config:
    hidden_size, vocab_size, image_token_id, width = 24, 50, 40, 5

    def get_text_config(self) -> _Config:
        return self

    def to_dict(self) -> dict[str, Any]:
        return {}


class _Asking(nn.Module):
    """What asks for its arguments as models of transformers do."""

    main_input_name = "input_ids"

    def __init__(self) -> None:
        super().__init__()
        self.config = _Config()
        self.project = nn.Linear(36, 24)

    def forward(
        self,
        input_ids: torch.Tensor,
        states_of: torch.Tensor | None = None,
        image_embeds: torch.Tensor | None = None,
        pixel_attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Computes.

        Args:
            states_of (`torch.LongTensor` of shape `(batch_size, sequence_length + 1, config.width * 2)`): documented.
        """
        if image_embeds is None:
            raise ValueError("You have to specify image_embeds")
        tokens, features = int((input_ids == self.config.image_token_id).sum()), image_embeds.shape[0] * 3
        if tokens != features:
            raise ValueError(f"Image features and image tokens do not match, tokens: {tokens}, features: {features}")
        assert states_of.shape == (2, 9, 10) and not states_of.is_floating_point()  # type: ignore[union-attr]
        return self.project(image_embeds).sum() + pixel_attention_mask.sum()  # type: ignore[union-attr]


def test_what_a_failed_call_asks_for_is_passed() -> None:
    """By name, by the line that failed, by the width of a matmul, by the documentation, and as placeholders."""
    kwargs, _ = found(_Asking(), effort=1)
    assert sorted(kwargs) == ["image_embeds", "input_ids", "pixel_attention_mask", "states_of"]
    assert kwargs["image_embeds"].shape == (2, 8, 36)
    assert (kwargs["input_ids"] == 40).sum(1).tolist() == [3, 3]
    with pytest.raises(ValueError, match="specify image_embeds"):
        found(_Asking())


def test_an_argument_that_nobody_knows_is_named() -> None:
    """Not a missing positional argument of a call that could not be right."""

    class Session(_Asking):
        def forward(self, inference_session: Any, input_ids: Any = None) -> Any:  # type: ignore[override]
            return input_ids

    with pytest.raises(NotConstructibleError, match="inference_session"):
        found(Session(), effort=2)


CLASSES = {
    "bamba": "indices of the layers of attention, of which the default has none",
    "cohere_compass_text": "an empty dictionary of rotary parameters",
    "dbrx": "a number that the configuration's class has lost",
    "decision_transformer": "states, actions and rewards",
    "deepseek_v2": "experts per token, of which the default has none",
    "dinov3_vit": "stages that are layers, and a weight without elements",
    "dots3_note_text": "a dictionary by layer, and heads of two parts",
    "gemma3n_text": "layers that share keys and values",
    "gemma4_text": "layers with a head of another size",
    "glm4v_text": "sections that the default has not",
    "inkling2_vision": "patches in the shape of the documentation",
    "jamba": "layers of attention by a period",
    "lxmert": "features of objects",
    "qwen3_5": "a generating class of a part of the model",
    "cosmos3_edge_vision": "flattened patches and their grid",
}
"""A model type for each class of what small configurations and calls need."""


@pytest.mark.daily(6)
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_of_model_types_is_made(name: str) -> None:
    """And computes; models that generate, a prompt."""
    source = Transformers()
    example = source.make(name, source.variants(name)[:2][-1])
    with torch.no_grad():
        example.module(*example.args, **example.kwargs)


@pytest.mark.parametrize("name", ["sam", "sam_hq"])
def test_an_image_is_small_where_the_prompts_encoder_counts_its_patches(name: str) -> None:
    """At 1,024 x 1,024 pixels a table of scores takes 1.6 GB, in PyTorch too."""
    from transformers import AutoConfig

    small = next(configurations(AutoConfig.for_model(name)))
    vision, prompts = small.vision_config, small.prompt_encoder_config
    assert vision.image_size // vision.patch_size == prompts.image_embedding_size == 4
    assert vision.output_channels == 2 * vision.num_pos_feats == prompts.hidden_size == 64
