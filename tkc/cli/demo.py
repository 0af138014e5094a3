"""``make demo``: a real mixture-of-experts transformer, compiled, run, compared with PyTorch, and explained."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console

from tkc.api import compile
from tkc.cli.progress import StageProgress
from tkc.errors import Error, TargetError, UsageError
from tkc.runtime.local_gpu import local_gpu
from tkc.runtime.report import print_report
from tkc.runtime.tables import PlainTable

_TOKENS = ((1, 17), (2, 64), (4, 128))
"""The (batch, sequence) sizes that the one build is run with."""
_TOLERANCE = 1e-4  # for float32; in bfloat16, PyTorch's own rounding is the measure


def run_demo() -> None:
    """Compile transformers' Qwen3-MoE (two layers, random weights) for this machine and show what came of it.

    Raises :class:`tkc.UsageError` without transformers, and :class:`tkc.Error` if results deviate from PyTorch's.
    """
    try:
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    except ImportError:
        raise UsageError("the demo's model is transformers': pip install transformers") from None

    console = Console()
    target, device, dtype = _this_machine()
    torch.manual_seed(0)
    config = Qwen3MoeConfig(  # type: ignore[call-arg]  # made a dataclass at run time
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=32,
        num_experts_per_tok=4,
        norm_topk_prob=True,
    )
    model = Qwen3MoeForCausalLM(config).eval().to(device, dtype)
    console.print(f"Qwen3-MoE: 2 layers, 32 experts, top 4, {dtype}, for {target}\n", markup=False)

    batch, sequence = torch.export.Dim("batch", max=64), torch.export.Dim("sequence", min=2, max=4096)
    example = torch.randint(0, config.vocab_size, (2, 64), device=device)
    with StageProgress(Console(stderr=True)) as progress:
        executable = compile(
            model,
            (example,),
            {"use_cache": False},
            target=target,
            dynamic_shapes={"input_ids": {0: batch, 1: sequence}, "use_cache": None},
            observer=progress.stage,
            kernel_progress=progress.kernel,
        )
    print_report(executable.report, console)

    table = PlainTable(title="The same build at every size (errors against a float32 run)")
    for column in ("batch × sequence", "error of tkc", "error of eager", "tkc", "PyTorch eager"):
        table.add_column(column, justify="right")
    exact = copy.deepcopy(model).float()
    agrees = True
    for shape in _TOKENS:
        tokens = torch.randint(0, config.vocab_size, shape, device=device)
        with torch.no_grad():
            reference = exact(tokens, use_cache=False).logits
            error = _error(executable(tokens, use_cache=False).logits, reference)
            rounding = _error(model(tokens, use_cache=False).logits, reference)
            ours = _milliseconds(partial(executable, tokens, use_cache=False), device)
            eager = _milliseconds(partial(model, tokens, use_cache=False), device)
        agrees &= error <= max(_TOLERANCE, 1.5 * rounding)
        name = f"{shape[0]} × {shape[1]}"
        table.add_row(name, f"{error:.1e}", f"{rounding:.1e}", f"{ours:.2f} ms", f"{eager:.2f} ms")
    console.print(table)
    if not agrees:
        raise Error("the compiled model deviates from PyTorch by more than rounding explains; see the table")
    console.print("agrees with PyTorch")


def _error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """The norm of the difference over the norm of the reference."""
    return float(torch.linalg.vector_norm(result.float() - reference) / torch.linalg.vector_norm(reference))


def _this_machine() -> tuple[str, torch.device, torch.dtype]:
    """The GPU if there is a supported one, in the precision its kernels are for; else the CPU."""
    try:
        return str(local_gpu()), torch.device("cuda"), torch.bfloat16
    except TargetError:
        return "cpu", torch.device("cpu"), torch.float32


def _milliseconds(call: Callable[[], object], device: torch.device, repeats: int = 7) -> float:
    """The median time of a call, after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)
