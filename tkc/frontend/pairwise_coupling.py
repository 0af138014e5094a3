"""Probabilities of several classes from those of each pair of them, as libsvm couples them, as one TensorIR function.

Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling", 2004. libsvm stops long
before the limit, so where it stops is a part of the result: of two classes, too, it is some 0.003 from the
probability of their pair.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

from tkc.contracts import NO_ALIAS, OP_PATTERN, OPAQUE_PATTERN

_MOST_STEPS = 100


def coupling_function(classes: int) -> tirx.PrimFunc:
    """The function that couples the probabilities of pairs.

    Takes ``pairs [R, K, K]`` float32, the probability of class ``i`` against ``j`` at ``[i, j]``, neither 0 nor
    1; the diagonal is not read. Writes ``probabilities [R, K]``; and two of the same size that it needs meanwhile.
    """
    start, tolerance = 1 / classes, 0.005 / classes

    @T.prim_func(private=True, s_tir=True)
    def coupled_probabilities(
        pairs_handle: T.handle, probabilities_handle: T.handle, diagonal_handle: T.handle, products_handle: T.handle
    ) -> None:
        T.func_attr({NO_ALIAS: True, OP_PATTERN: OPAQUE_PATTERN})
        rows = T.int64()
        pairs = T.match_buffer(pairs_handle, (rows, classes, classes), "float32")
        probabilities = T.match_buffer(probabilities_handle, (rows, classes), "float32")
        diagonal = T.match_buffer(diagonal_handle, (rows, classes), "float32")
        products = T.match_buffer(products_handle, (rows, classes), "float32")
        for row in T.parallel(rows):
            with T.sblock():
                total = T.sblock_alloc_buffer((1,), "float32", scope="local")
                change = T.sblock_alloc_buffer((1,), "float32", scope="local")
                unfinished = T.sblock_alloc_buffer((1,), "int32", scope="local")
                for i in range(classes):
                    probabilities[row, i] = T.float32(start)
                    diagonal[row, i] = T.float32(0)
                    for j in range(classes):
                        if i != j:
                            diagonal[row, i] = diagonal[row, i] + pairs[row, j, i] * pairs[row, j, i]
                unfinished[0] = 1
                for _step in T.serial(_MOST_STEPS):
                    if unfinished[0] == 1:
                        total[0] = T.float32(0)
                        for i in range(classes):
                            products[row, i] = diagonal[row, i] * probabilities[row, i]
                            for j in range(classes):
                                if i != j:
                                    products[row, i] = (
                                        products[row, i] - pairs[row, j, i] * pairs[row, i, j] * probabilities[row, j]
                                    )
                            total[0] = total[0] + probabilities[row, i] * products[row, i]
                        unfinished[0] = 0
                        for i in range(classes):
                            if tirx.abs(products[row, i] - total[0]) >= T.float32(tolerance):
                                unfinished[0] = 1
                        if unfinished[0] == 1:
                            for i in range(classes):
                                change[0] = (total[0] - products[row, i]) / diagonal[row, i]
                                probabilities[row, i] = probabilities[row, i] + change[0]
                                total[0] = (
                                    (
                                        total[0]
                                        + change[0] * (change[0] * diagonal[row, i] + T.float32(2) * products[row, i])
                                    )
                                    / (T.float32(1) + change[0])
                                    / (T.float32(1) + change[0])
                                )
                                for j in range(classes):
                                    products[row, j] = (
                                        products[row, j]
                                        + change[0]
                                        * T.if_then_else(i == j, diagonal[row, i], -pairs[row, j, i] * pairs[row, i, j])
                                    ) / (T.float32(1) + change[0])
                                    probabilities[row, j] = probabilities[row, j] / (T.float32(1) + change[0])

    return coupled_probabilities
