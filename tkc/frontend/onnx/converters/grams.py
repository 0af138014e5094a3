"""TfIdfVectorizer: counts of n-grams, each compared with every place of the input where it may begin."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tvm import relax

from tkc.frontend.onnx.converters.shared import Converted, Converter, scalar, size_vector
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError


def tf_idf(node: Node) -> Converted:
    """How often the input's rows have each n-gram of the pool, or its weight, or both."""
    if "pool_int64s" not in node.attributes:
        raise ConversionError("has no pool of n-grams; correct the model")
    shape, rank = node.shape(0), node.rank(0)
    rows = node.tensor(0) if rank == 2 else node.emit(relax.op.expand_dims(node.tensor(0), [0]))
    rows = node.emit(relax.op.astype(rows, "int64"))
    width = max(node.attribute("ngram_indexes")) + 1
    total = None
    for length, grams, where in grams_of(node):
        # Of single tokens, skipping leaves nothing else.
        for skip in range(node.attribute("max_skip_count") + 1 if length > 1 else 1):
            found = _counted(node, rows, shape[-1], grams, skip + 1)
            into = np.zeros((len(grams), width), "float32")
            into[np.arange(len(grams)), where] = 1
            part = node.emit(relax.op.matmul(found, relax.const(into, "float32")))
            total = part if total is None else node.emit(relax.op.add(total, part))
    if total is None:
        raise ConversionError("has no n-grams of the lengths that it looks for; correct the model")
    result = weighted(node, total)
    return result if rank == 2 else relax.op.squeeze(node.emit(result), [0])


def grams_of(node: Node) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """The n-grams of each length that counts, ``[number, length]``, and the places of their counts in the result."""
    counts, pool, places = (
        np.array(node.attribute(name), "int64") for name in ("ngram_counts", "pool_int64s", "ngram_indexes")
    )
    ends, before = [*counts[1:].tolist(), len(pool)], 0
    for length, (start, end) in enumerate(zip(counts.tolist(), ends, strict=True), 1):
        grams = pool[start:end].reshape(-1, length)
        if node.attribute("min_gram_length") <= length <= node.attribute("max_gram_length") and len(grams):
            yield length, grams, places[before : before + len(grams)]
        before += len(grams)


def _counted(node: Node, rows: relax.Expr, size: object, grams: np.ndarray, step: int) -> relax.Expr:
    """How often each row of ``rows [batch, size]`` has each of ``grams``, its tokens ``step`` apart; float32."""
    op, emit = relax.op, node.emit
    length = grams.shape[1]
    begins = emit(op.arange(0, size, 1, "int64"))
    last = emit(op.subtract(size_vector(node, [size]), scalar(1, "int64")))
    same = None
    for token in range(length):
        at = emit(op.add(begins, scalar(token * step, "int64")))
        read = emit(op.take(rows, emit(op.minimum(at, last)), 1, mode="clip"))
        equal = emit(op.equal(emit(op.expand_dims(read, [2])), relax.const(grams[:, token], "int64")))
        same = equal if same is None else emit(op.logical_and(same, equal))
    fits = emit(op.less_equal(emit(op.add(begins, scalar((length - 1) * step, "int64"))), last))
    same = emit(op.logical_and(same, emit(op.expand_dims(fits, [1]))))
    return emit(op.sum(emit(op.astype(same, "float32")), [1]))


def weighted(node: Node, counts: relax.Expr) -> relax.Expr:
    """Counts, or their n-grams' weights, or both, as the node's ``mode`` says."""
    mode, width = node.attribute("mode"), max(node.attribute("ngram_indexes")) + 1
    # Of the result's places, as ONNX's reference and ONNX Runtime have it, and not of the pool's n-grams.
    weights = np.ones(width, "float32")
    given = np.array(node.attribute("weights", [1.0] * width), "float32")[:width]
    weights[: len(given)] = given
    if mode == "TF":
        return counts
    there = relax.op.astype(relax.op.greater(counts, scalar(0.0, "float32")), "float32")
    return relax.op.multiply(there if mode == "IDF" else counts, relax.const(weights, "float32"))


CONVERTERS: dict[str, Converter] = {"TfIdfVectorizer": tf_idf}
