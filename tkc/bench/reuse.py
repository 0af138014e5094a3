"""What a tuning database is worth without a trial: BERT-base, and a second model that shares its layers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from tkc.api import compile
from tkc.databases import Database
from tkc.measure.record import Row
from tkc.measure.timing import median_milliseconds
from tkc.runtime.executable import Executable


def bench_reuse(tokens: int, database: Database) -> list[Row]:
    """Two rows on this machine's CPU, one sequence of ``tokens``: BERT-base, and six of its layers with a classifier.

    Each is compiled without records and with those of ``database``. The ratio is to PyTorch eager; ``exact`` is the
    share of the time of its functions that has records of the very function.
    """
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    torch.manual_seed(0)
    tokenized = torch.randint(0, BertConfig().vocab_size, (1, tokens))
    inputs = {"input_ids": tokenized, "attention_mask": torch.ones_like(tokenized)}
    models = {
        "bert-base, 12 layers": BertModel(BertConfig()),
        "bert-base with a classifier, 6 layers": BertForSequenceClassification(BertConfig(num_hidden_layers=6)),
    }
    return [_row(f"{name}, {tokens} tokens", model.eval(), inputs, database) for name, model in models.items()]


def _row(name: str, model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], database: Database) -> Row:
    cpu = torch.device("cpu")
    with torch.inference_mode():
        expected = model(**inputs)[0]
        # First, because TVM's threads would stand in the way of PyTorch's.
        eager = median_milliseconds(lambda: model(**inputs), cpu)
    _compiled(model, inputs, False)  # loads what the first compilation of a process loads
    plain, seconds = _compiled(model, inputs, False)
    tuned, tuned_seconds = _compiled(model, inputs, database)
    error = float((tuned(**inputs)[0] - expected).abs().max() / expected.abs().max())
    milliseconds = {
        "tkc with records": median_milliseconds(lambda: tuned(**inputs), cpu),
        "tkc": median_milliseconds(lambda: plain(**inputs), cpu),
        "eager": eager,
    }
    notes: dict[str, float | str] = {
        "exact": tuned.report.coverage.exact,
        "compile s": tuned_seconds,
        "compile without records s": seconds,
    }
    return Row(name, milliseconds, eager / milliseconds["tkc with records"], error, notes)


def _compiled(model: torch.nn.Module, inputs: Mapping[str, Any], database: Database) -> tuple[Executable, float]:
    start = time.perf_counter()
    executable = compile(model, (), inputs, target="cpu", database=database)
    return executable, time.perf_counter() - start
