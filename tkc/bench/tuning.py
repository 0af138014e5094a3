"""Tuning against stock MetaSchedule: the latency of BERT-base after equal trials, from nothing, in one run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

import torch
from tvm.s_tir.meta_schedule.relax_integration import tune_relax

from tkc.api import compile, tune
from tkc.frontend import import_model
from tkc.kernels import Target
from tkc.kernels.choices import RecordedChoices
from tkc.measure.record import Row
from tkc.measure.timing import median_milliseconds
from tkc.schedules.database import target_folder
from tkc.schedules.target import tvm_target
from tkc.tuning.functions import unscheduled

_CPU = Target("cpu")


def bench_tuning(layers: int, tokens: int, trials: int) -> list[Row]:
    """One row: BERT-base of ``layers`` layers on one sequence of ``tokens``, on this machine's CPU.

    Kernels are left out, so that both tune the same functions. The ratio is stock MetaSchedule's latency over ours.
    """
    model, inputs = _bert_base(layers, tokens)
    # First, because TVM's threads would stand in the way of PyTorch's.
    eager = _eager(model, inputs)
    with tempfile.TemporaryDirectory() as folder:
        ours, stock = Path(folder, "ours"), Path(folder, "stock")
        result = tune(model, (), inputs, database=ours, trials=trials, kernels="none")
        _tune_stock(model, inputs, target_folder(stock, _CPU), trials)
        milliseconds = {
            "tkc": _latency(model, inputs, ours),
            "stock MetaSchedule": _latency(model, inputs, stock),
            "default rules": _latency(model, inputs, False),
            "PyTorch eager": eager,
        }
    ratio = milliseconds["stock MetaSchedule"] / milliseconds["tkc"]
    notes: dict[str, float | str] = {"trials": trials, "estimated gain": result.gain}
    return [Row(f"bert-base, {layers} layers, {tokens} tokens", milliseconds, ratio, notes=notes)]


def _bert_base(layers: int, tokens: int) -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers)  # the defaults are BERT-base's
    return BertModel(config).eval(), {"input_ids": torch.randint(0, config.vocab_size, (1, tokens))}


def _tune_stock(model: torch.nn.Module, inputs: dict[str, Any], folder: Path, trials: int) -> None:
    """What a user of TVM runs, on the same functions and target; records in ``folder``."""
    folder.mkdir(parents=True)
    module = unscheduled(import_model(model, (), inputs, None), _CPU, "none", RecordedChoices(()))
    tune_relax(module, {}, tvm_target(_CPU), str(folder), max_trials_global=trials, seed=0)


def _latency(model: torch.nn.Module, inputs: dict[str, Any], database: Path | Literal[False]) -> float:
    executable = compile(model, (), inputs, kernels="none", database=database)
    return median_milliseconds(lambda: executable(**inputs), torch.device("cpu"))


def _eager(model: torch.nn.Module, inputs: dict[str, Any]) -> float:
    with torch.inference_mode():
        return median_milliseconds(lambda: model(**inputs), torch.device("cpu"))
