"""Architectures of transformers that nobody tuned for, each beside PyTorch: what a model of one's own may expect."""

from __future__ import annotations

import contextlib
import copy
import gc
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import nn

from tkc.bench.architecture_inputs import FAMILIES, PIXELS, VOCABULARY, Size
from tkc.bench.contenders import known_references
from tkc.bench.model import TURNS, Contender, compared, compiled, pytorch, through_torch_compile
from tkc.bench.models import Benchmarked, initialized, tell_tokens_apart
from tkc.errors import UsageError
from tkc.measure.record import Row, shortened

_LAYERS = 2
_STREAM = 4.0
"""The embeddings' deviation. What a layer in the middle of a trained network adds is a fraction of what it is given.

Where it adds as much, rounding makes several percent of difference in PyTorch's own bfloat16 results of models whose
experts are chosen by scores that hardly differ: others are chosen for some tokens.
"""
_BRANCH = 0.125  # one over the root of twice 32 layers, GPT-2's rule
_BATCH_NORMALIZATIONS = (nn.BatchNorm1d, nn.BatchNorm2d)


@dataclass(frozen=True)
class Architecture:
    """An architecture by its ``model_type`` in transformers, with the ``options`` of its configuration.

    ``family`` is a key of :data:`FAMILIES`, which says what the model is called with. ``attention`` is the
    implementation asked of transformers where its own choice leaves something out. ``any_image``: the model takes
    images of any height and width. ``branch_ends`` are modules at the ends of residual branches, by the ends of their
    names, which training leaves small and transformers does not begin so.
    """

    model_type: str
    family: str
    options: Mapping[str, Any] = field(default_factory=dict)
    attention: str | None = None
    any_image: bool = False
    branch_ends: tuple[str, ...] = ()

    def name(self, size: Size | None = None) -> str:
        """What its row is called: the family, too, of which a record makes a mean. Of the largest size if left out."""
        family = FAMILIES[self.family]
        return f"{self.family} {self.model_type}, {family.words(size or family.largest)}"

    def sizes(self) -> tuple[Size, ...]:
        """A small, an odd and the largest size."""
        sizes = FAMILIES[self.family].sizes
        if self.any_image or self.family != "vision":
            return sizes
        return tuple(replace(size, height=PIXELS, width=PIXELS) for size in sizes)

    def benchmarked(self, device: torch.device, dtype: torch.dtype, symbolic: bool = False) -> Benchmarked:
        """The model with random weights, the same each time, and inputs of the largest size, for which it is compiled.

        ``symbolic``: for all sizes that PyTorch can export it for at once.
        """
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.for_model(self.model_type, **self.options)

        def model_type(config: Any) -> nn.Module:
            made: nn.Module = AutoModel.from_config(config, attn_implementation=self.attention)
            return made

        model = initialized(model_type, config, device, dtype)
        if self.family in ("decoder", "encoder", "translator"):
            tell_tokens_apart(model, _STREAM)
        elif self.family == "vision":
            _keep_variance(model)
        for name, module in model.named_modules():
            if name.endswith(self.branch_ends):
                _shrink(module)
        family = FAMILIES[self.family]
        inputs = family.inputs(family.largest, device, dtype)
        _take_statistics(model, inputs)
        shapes = family.dynamic_shapes(inputs, self.any_image) if symbolic else None
        return Benchmarked(self.name(), model, inputs, shapes, lambda *_: family.inputs(family.largest, device, dtype))


def _keep_variance(model: nn.Module) -> None:
    """Make filters, normalizations and biases by distance such as training makes them.

    With those that transformers begins training with, some networks make what they are given smaller from layer to
    layer, others make the differences that rounding makes larger: a rectified half of random channels loses half of
    what it tells, not of its errors, and attention that is the same everywhere is a mean that tells nothing. Of 27
    layers of MobileNet's first version that makes an error of 0.37.
    """
    for name, parameter in model.named_parameters():
        if name.endswith("attention_biases"):
            nn.init.normal_(parameter, std=4.0)  # heads that look at places, as LevIT's do
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, (*_BATCH_NORMALIZATIONS, nn.GroupNorm)):
            nn.init.constant_(module.weight, 0.5)
            nn.init.ones_(module.bias)  # most of a channel passes what rectifies it


def _take_statistics(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Give batch normalizations the statistics of what ``inputs`` make of them, as training would.

    Where they take for granted that each channel has mean 0 and variance 1, values grow or vanish from layer to layer,
    and the differences that rounding makes with them: then PyTorch's own bfloat16 result says nothing of what is right
    (EfficientNet's error against float32 was 0.97). Nothing else trains, such as dropout.
    """
    normalizations = [module for module in model.modules() if isinstance(module, _BATCH_NORMALIZATIONS)]
    if not normalizations:
        return
    for module in normalizations:
        module.reset_running_stats()
        module.momentum = None  # the mean of all calls, of which there is one
        module.train()
    with torch.no_grad():
        model(**inputs)
    model.eval()


@torch.no_grad()
def _shrink(module: nn.Module) -> None:
    """Make ``module``'s results as small beside what they are added to as training leaves them, and their mean none."""
    for name, parameter in module.named_parameters(recurse=False):
        parameter.mul_(_BRANCH if name == "weight" else 0)


_WIDTH = {"hidden_size": 2048, "num_attention_heads": 16}
_MARKS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}  # which stand in the vocabulary
_TOKENIZER = {"vocab_size": VOCABULARY, **_MARKS}
_TEXT = {
    **_WIDTH,
    **_TOKENIZER,
    "num_hidden_layers": _LAYERS,
    "intermediate_size": 8192,
    "max_position_embeddings": 8192,
}
_DECODER = {**_TEXT, "num_key_value_heads": 4}
_HEADS = {"head_dim": 128}
_EXPERTS = {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
_LATENTS = {
    "num_key_value_heads": 16,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
_TRANSLATOR = {
    **_TOKENIZER,
    "decoder_start_token_id": 0,
    "d_model": 1024,
    "encoder_layers": _LAYERS,
    "decoder_layers": _LAYERS,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
}
_VISION = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": _LAYERS}
_MULTIPLIERS = {"attention_multiplier": 1 / 128, "residual_multiplier": 0.22}  # as published ones have
_GPT = {**_TOKENIZER, "n_embd": 2048, "n_head": 16, "n_layer": _LAYERS, "n_positions": 8192}
_STATES = {"mamba_n_heads": 64, "mamba_d_head": 64, "mamba_d_state": 128}
_ALTERNATING = ["sliding_attention", "full_attention"]
_T5 = {"vocab_size": VOCABULARY, "d_model": 1024, "d_ff": 4096, "num_heads": 16, "num_layers": _LAYERS}

ARCHITECTURES = {
    architecture.model_type: architecture
    for architecture in (
        Architecture("llama", "decoder", _DECODER),
        Architecture("mistral", "decoder", {**_DECODER, "sliding_window": 1024}),
        Architecture("qwen3", "decoder", {**_DECODER, **_HEADS}),
        # The others of transformers' implementations do not cap the scores.
        Architecture("gemma2", "decoder", {**_DECODER, **_HEADS, "sliding_window": 1024}, attention="eager"),
        Architecture("gemma3_text", "decoder", {**_DECODER, **_HEADS, "sliding_window": 1024}),
        Architecture("cohere2", "decoder", {**_DECODER, "sliding_window": 1024}),
        Architecture("olmo2", "decoder", _DECODER),
        Architecture("phi3", "decoder", {**_DECODER}),
        Architecture("granite", "decoder", {**_DECODER, **_MULTIPLIERS}),
        Architecture("glm4", "decoder", {**_DECODER, **_HEADS}),
        Architecture("starcoder2", "decoder", _DECODER),
        Architecture("stablelm", "decoder", _DECODER),
        Architecture("smollm3", "decoder", {**_DECODER}),
        Architecture("gpt_neox", "decoder", _TEXT),
        Architecture("gpt2", "decoder", _GPT),
        Architecture(
            "opt",
            "decoder",
            {
                **_WIDTH,
                **_TOKENIZER,
                "num_hidden_layers": _LAYERS,
                "ffn_dim": 8192,
                "word_embed_proj_dim": 2048,
                "max_position_embeddings": 8192,
            },
        ),
        Architecture(
            "bloom",
            "decoder",
            {**_TOKENIZER, "hidden_size": 2048, "n_head": 16, "n_layer": _LAYERS},
            branch_ends=("self_attention.dense", "dense_4h_to_h"),
        ),
        Architecture("falcon", "decoder", {**_WIDTH, **_TOKENIZER, "num_hidden_layers": _LAYERS, "multi_query": True}),
        Architecture("mixtral", "decoder", {**_DECODER, "num_local_experts": 8}),
        Architecture("qwen2_moe", "decoder", {**_DECODER, **_EXPERTS, "shared_expert_intermediate_size": 2048}),
        Architecture("qwen3_moe", "decoder", {**_DECODER, **_HEADS, **_EXPERTS}),
        Architecture("olmoe", "decoder", {**_DECODER, "num_experts": 64, "intermediate_size": 1024}),
        Architecture("ernie4_5_moe", "decoder", {**_DECODER, "moe_num_experts": 64, "moe_intermediate_size": 768}),
        Architecture("gpt_oss", "decoder", {**_DECODER, **_HEADS, "num_local_experts": 32, "intermediate_size": 2048}),
        Architecture(
            "granitemoe", "decoder", {**_DECODER, **_MULTIPLIERS, "num_local_experts": 32, "intermediate_size": 1024}
        ),
        Architecture("llama4_text", "decoder", {**_DECODER, **_HEADS, "intermediate_size_mlp": 8192}),
        Architecture("deepseek_v2", "decoder", {**_DECODER, **_LATENTS, "topk_method": "greedy"}),
        Architecture("deepseek_v3", "decoder", {**_DECODER, **_LATENTS, "n_group": 8, "topk_group": 4}),
        Architecture(
            "qwen3_next", "decoder", {**_DECODER, **_EXPERTS, "layer_types": ["linear_attention", "full_attention"]}
        ),
        Architecture(
            "mamba2",
            "decoder",
            {
                **_TOKENIZER,
                "hidden_size": 2048,
                "num_heads": 64,
                "head_dim": 64,
                "num_hidden_layers": _LAYERS,
            },
        ),
        Architecture("qwen2", "decoder", _DECODER),
        Architecture(
            "gemma", "decoder", {**_DECODER, "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 1}
        ),
        Architecture("olmo3", "decoder", {**_DECODER, "sliding_window": 1024, "layer_types": _ALTERNATING}),
        Architecture("nemotron", "decoder", {**_DECODER, **_HEADS}),
        Architecture("exaone4", "decoder", {**_DECODER, "sliding_window": 1024, "layer_types": _ALTERNATING}),
        Architecture("seed_oss", "decoder", {**_DECODER, **_HEADS}),
        Architecture("helium", "decoder", {**_DECODER, **_HEADS}),
        Architecture("phi", "decoder", _TEXT),
        Architecture("persimmon", "decoder", _TEXT),
        Architecture("gptj", "decoder", {**_GPT, "n_inner": 8192, "rotary_dim": 64}),
        Architecture("codegen", "decoder", {**_GPT, "n_inner": 8192, "rotary_dim": 64}),
        Architecture("gpt_bigcode", "decoder", {**_GPT, "n_inner": 8192}),
        Architecture(
            "mpt", "decoder", {**_TOKENIZER, "d_model": 2048, "n_heads": 16, "n_layers": _LAYERS, "max_seq_len": 8192}
        ),
        Architecture(
            "xglm",
            "decoder",
            {
                **_TOKENIZER,
                "d_model": 2048,
                "attention_heads": 16,
                "num_layers": _LAYERS,
                "ffn_dim": 8192,
                "max_position_embeddings": 8192,
            },
        ),
        Architecture("biogpt", "decoder", _TEXT),
        Architecture(
            "glm4_moe",
            "decoder",
            {
                **_DECODER,
                **_HEADS,
                "n_routed_experts": 64,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 768,
                "use_qk_norm": True,
            },
        ),
        Architecture(
            "dots1",
            "decoder",
            {
                **_DECODER,
                **_HEADS,
                "n_routed_experts": 64,
                "n_shared_experts": 2,
                "num_experts_per_tok": 6,
                "moe_intermediate_size": 768,
                "first_k_dense_replace": 1,
            },
        ),
        Architecture("phimoe", "decoder", {**_DECODER, "num_local_experts": 16, "intermediate_size": 2048}),
        Architecture(
            "jetmoe", "decoder", {**_TEXT, "num_key_value_heads": 16, "kv_channels": 128, "intermediate_size": 4096}
        ),
        Architecture("lfm2", "decoder", {**_DECODER, "layer_types": ["conv", "full_attention"]}),
        Architecture("bamba", "decoder", {**_DECODER, **_STATES, "attn_layer_indices": [1]}),
        Architecture("falcon_h1", "decoder", {**_DECODER, **_STATES, "mamba_d_ssm": 4096}),
        Architecture(
            "granitemoehybrid",
            "decoder",
            {
                **_DECODER,
                **_STATES,
                **_MULTIPLIERS,
                "num_local_experts": 32,
                "num_experts_per_tok": 8,
                "intermediate_size": 1024,
                "shared_intermediate_size": 2048,
                "layer_types": ["linear_attention", "full_attention"],
            },
        ),
        Architecture("bert", "encoder", _TEXT),
        Architecture("roberta", "encoder", _TEXT),
        Architecture("mpnet", "encoder", _TEXT),
        Architecture("albert", "encoder", _TEXT),
        Architecture("electra", "encoder", _TEXT),
        Architecture(
            "distilbert", "encoder", {**_TOKENIZER, "dim": 2048, "n_heads": 16, "n_layers": _LAYERS, "hidden_dim": 8192}
        ),
        Architecture("modernbert", "encoder", {**_TEXT, "cls_token_id": 0, "sep_token_id": 1}),
        Architecture("esm", "encoder", {**_TEXT, "position_embedding_type": "rotary"}),
        Architecture(
            "deberta-v2",
            "encoder",
            {
                **_TEXT,
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "relative_attention": True,
                "position_buckets": 256,
                "pos_att_type": ["p2c", "c2p"],
                "norm_rel_ebd": "layer_norm",
                "share_att_key": True,
                "position_biased_input": False,
            },
        ),
        Architecture("squeezebert", "encoder", {**_TEXT, "embedding_size": 2048}),
        Architecture("convbert", "encoder", _TEXT),
        Architecture("eurobert", "encoder", {**_DECODER, **_HEADS}),
        Architecture("nomic_bert", "encoder", {**_TEXT, **_HEADS}),
        Architecture("roformer", "encoder", {**_TEXT, "embedding_size": 2048}),
        Architecture("mobilebert", "encoder", {**_TOKENIZER, "num_hidden_layers": _LAYERS}),
        Architecture("big_bird", "encoder", {**_TEXT, "block_size": 16, "sep_token_id": 2}),
        Architecture("t5", "translator", _T5),
        Architecture("bart", "translator", _TRANSLATOR),
        Architecture("m2m_100", "translator", _TRANSLATOR),
        Architecture("whisper", "speech-translator", _TRANSLATOR),
        Architecture("mt5", "translator", _T5),
        Architecture("umt5", "translator", _T5),
        Architecture("longt5", "translator", {**_T5, "encoder_attention_type": "transient-global"}),
        Architecture("pegasus", "translator", _TRANSLATOR),
        Architecture("mbart", "translator", _TRANSLATOR),
        Architecture(
            "marian", "translator", {**_TRANSLATOR, "decoder_vocab_size": VOCABULARY, "max_position_embeddings": 1024}
        ),
        Architecture("blenderbot", "translator", {**_TRANSLATOR, "max_position_embeddings": 1024}),
        Architecture("speech_to_text", "speech-transcriber", _TRANSLATOR),
        Architecture("vit", "vision", _VISION),
        Architecture("deit", "vision", _VISION),
        Architecture("beit", "vision", _VISION),
        Architecture(
            "dinov2",
            "vision",
            {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": _LAYERS, "image_size": PIXELS},
        ),
        Architecture("siglip_vision_model", "vision", _VISION),
        Architecture("clip_vision_model", "vision", _VISION),
        Architecture("swin", "vision", {"embed_dim": 128, "depths": [1, 1, 1, 1], "num_heads": [4, 8, 16, 32]}),
        Architecture(
            "segformer", "vision", {"depths": [1, 1, 1, 1], "hidden_sizes": [64, 128, 320, 512]}, any_image=True
        ),
        Architecture(
            "convnext", "vision", {"depths": [1, 1, 1, 1], "hidden_sizes": [128, 256, 512, 1024]}, any_image=True
        ),
        Architecture(
            "resnet", "vision", {"depths": [1, 1, 1, 1]}, any_image=True, branch_ends=("layer.2.normalization",)
        ),
        Architecture("regnet", "vision", {"depths": [1, 1, 1, 1]}, any_image=True),
        Architecture("mobilenet_v2", "vision", any_image=True, branch_ends=("reduce_1x1.normalization",)),
        Architecture("efficientnet", "vision", any_image=True, branch_ends=("project_bn",)),
        Architecture("dinov3_vit", "vision", {**_VISION, "num_register_tokens": 4}),
        Architecture(
            "convnextv2", "vision", {"depths": [1, 1, 1, 1], "hidden_sizes": [128, 256, 512, 1024]}, any_image=True
        ),
        Architecture(
            "swinv2",
            "vision",
            {"embed_dim": 128, "depths": [1, 1, 1, 1], "num_heads": [4, 8, 16, 32]},
            branch_ends=("layernorm_before", "layernorm_after"),
        ),
        Architecture(
            "pvt_v2",
            "vision",
            {"depths": [1, 1, 1, 1], "hidden_sizes": [64, 128, 320, 512], "num_attention_heads": [1, 2, 5, 8]},
            any_image=True,
        ),
        Architecture("hiera", "vision", {"depths": [1, 1, 1, 1]}),
        Architecture("focalnet", "vision", {"embed_dim": 128, "depths": [1, 1, 1, 1]}),
        Architecture("poolformer", "vision", {"depths": [1, 1, 1, 1]}, any_image=True),
        Architecture("cvt", "vision", {"depth": [1, 2, 3]}, any_image=True),
        Architecture(
            "levit",
            "vision",
            {"depths": [1, 1, 1]},
            branch_ends=("module.projection.batch_norm", "module.linear_down.batch_norm"),
        ),
        Architecture("mobilevit", "vision"),
        Architecture("swiftformer", "vision", {"depths": [1, 1, 1, 1]}, any_image=True),
        Architecture("bit", "vision", {"depths": [1, 1, 1, 1]}, any_image=True),
        Architecture("mobilenet_v1", "vision", any_image=True),
        Architecture("dpt", "vision", {**_VISION, "image_size": PIXELS, "backbone_out_indices": [0, 0, 1, 1]}),
        Architecture("wav2vec2", "sound", _VISION),
        Architecture("hubert", "sound", _VISION),
        Architecture("wavlm", "sound", _VISION),
        Architecture("data2vec-audio", "sound", _VISION),
        Architecture("sew", "sound", _VISION),
        Architecture("wav2vec2-conformer", "sound", _VISION),
        Architecture("audio-spectrogram-transformer", "spectrogram", _VISION),
    )
}


@dataclass(frozen=True)
class _Measuring:
    """How architectures are measured: on what, beside what, and whose turn it is on the device (``lock``, a file)."""

    device: torch.device
    dtype: torch.dtype
    references: Sequence[str]
    database: Path | None
    lock: Path
    through: bool = False
    symbolic: bool = False

    def rows(self, architecture: Architecture) -> list[Row]:
        """The row of one, of several sizes where they are ``symbolic``; where it cannot be compiled, the reason."""
        try:
            return list(self._measured(architecture))
        except Exception as error:  # of whatever kind: the others are still to be measured
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # raises where the device can do nothing more
            return [Row(architecture.name(), {}, notes={"failed": shortened(error)})]
        finally:
            gc.collect()  # models, and what torch.compile keeps of them, are in cycles
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _measured(self, architecture: Architecture) -> Iterator[Row]:
        case = architecture.benchmarked(self.device, self.dtype, self.symbolic)
        ours, notes = compiled(case, self.device, ["auto"], self.database)
        exact = copy.deepcopy(case.model).float()
        family = FAMILIES[architecture.family]
        for size in architecture.sizes() if self.symbolic else (family.largest,):
            name, inputs = architecture.name(size), family.inputs(size, self.device, self.dtype)
            try:
                yield self._compared(name, case, exact, ours, inputs, notes)
            except Exception as error:  # another size may do
                if not self.symbolic:
                    raise
                yield Row(name, {}, notes={"failed": shortened(error)})

    def _compared(
        self,
        name: str,
        case: Benchmarked,
        exact: nn.Module,
        ours: Mapping[str, Contender],
        inputs: dict[str, Any],
        notes: Mapping[str, float | str],
    ) -> Row:
        """The row of one size. What PyTorch compiles first is ready when the device is this one's."""
        told = dict(notes)
        references = pytorch(case.model, self.references)
        for reference_name, reference in references.items():
            start = time.perf_counter()
            with contextlib.suppress(Exception), torch.no_grad():  # raised again when it is measured
                reference(**inputs)
                told[f"{reference_name} first call s"] = time.perf_counter() - start
        contenders = dict(ours)
        if self.through:
            contenders |= through_torch_compile(case, "auto", self.database)
        turns = TURNS if self.through else 1
        with FileLock(self.lock):
            return compared(name, case, exact, contenders | references, inputs, told, self.device, turns)


def bench_architectures(
    names: Sequence[str],
    device: torch.device,
    dtype: torch.dtype,
    references: Sequence[str] = ("eager",),
    database: Path | None = None,
    jobs: int = 1,
    through: bool = False,
    symbolic: bool = False,
) -> Iterator[Row]:
    """A row for each of ``names``, of :data:`ARCHITECTURES` (all, where there are none), compiled for its one size.

    One that cannot be compiled or run has a row that says why, and no figures. Of several ``jobs`` one at a time
    measures, while the others compile. ``through``: also what ``torch.compile(backend="tkc")`` makes of each, by turns.
    ``symbolic``: three rows of each, a small, an odd and the largest size of one compiled model; PyTorch compiles for
    each size anew.
    """
    if unknown := [name for name in names if name not in ARCHITECTURES]:
        known = ", ".join(ARCHITECTURES)
        raise UsageError(f"there is no benchmark architecture {', '.join(unknown)}; choose from {known}")
    known_references(references)
    chosen = [ARCHITECTURES[name] for name in names or ARCHITECTURES]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        measuring = _Measuring(device, dtype, references, database, Path(folder) / "device.lock", through, symbolic)
        if jobs == 1:
            yield from chain.from_iterable(map(measuring.rows, chosen))
        else:
            pool = stack.enter_context(_processes(jobs))
            yield from chain.from_iterable(pool.map(measuring.rows, chosen))


@contextlib.contextmanager
def _processes(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """``jobs`` processes, spawned, since forked ones could not use the GPU; who leaves with an error waits for none."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))
    try:
        yield pool
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
