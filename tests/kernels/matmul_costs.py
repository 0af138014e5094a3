"""The times that matmuls' estimates are fitted to, the fit, and what is lost by choosing by estimates.

``python -m tests.kernels.matmul_costs`` prints the constants of :mod:`tkc.kernels.matmul.cost`, and of each weight how
much longer than the fastest tiling the chosen one takes if the fit has not seen this weight.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tkc.kernels import SPECS, Target
from tkc.kernels.gated_matmul import spec as gated_matmul
from tkc.kernels.library_calls import LibraryCall
from tkc.kernels.matmul import spec as matmul
from tkc.kernels.matmul.cost import H200, Costs, Gemm, Rates, library_microseconds, microseconds
from tkc.kernels.matmul.spec import MatmulConfiguration
from tkc.kernels.matmul.tiling import Tiling

TIMES = Path(__file__).parents[2] / "docs/benchmarks/h200/matmul-tilings.jsonl"
HOPPER = Target.parse("cuda:sm_90a")
# Of a tiling that was left out of the times, which is at least so far behind the fastest.
LEFT_OUT = 1.6


@dataclass(frozen=True)
class Measured:
    """A weight at ``m`` rows: microseconds of what is offered for it."""

    kernel: str
    parameters: Any
    m: int
    times: dict[MatmulConfiguration, float]

    @property
    def gemm(self) -> Gemm:
        """What its time depends on."""
        return matmul.gemm(self.parameters) if self.kernel == "matmul" else gated_matmul.gemm(self.parameters)

    def loss(self, configuration: MatmulConfiguration) -> float:
        """How much longer than the fastest it takes, as a ratio."""
        fastest = min(self.times.values())
        return self.times.get(configuration, LEFT_OUT * fastest) / fastest


def measured(kernel: str = "matmul") -> list[Measured]:
    """All times. That of cuBLASLt with a residual is cuBLAS's without, and what reading it takes."""
    found = []
    spec = SPECS[kernel]
    _, *weights = map(json.loads, TIMES.read_text().splitlines())  # the first line says how they were measured
    for weight in weights:
        if weight["kernel"] != kernel:
            continue
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in weight["parameters"].items()
        }
        parameters = spec.parameters_type(**given)
        offered = set(spec.configurations(parameters, HOPPER))
        for row in weight["rows"]:
            times: dict[MatmulConfiguration, float] = {Tiling(*fields): time for *fields, time in row["tilings"]}
            if LibraryCall("cublaslt") in offered:
                read = 2 * row["m"] * parameters.n if parameters.residual else 0
                times[LibraryCall("cublaslt")] = row["cublas"] + read / H200.memory
            found.append(Measured(kernel, parameters, row["m"], {c: t for c, t in times.items() if c in offered}))
    return found


def chosen_by(costs: Costs) -> Callable[[Measured], MatmulConfiguration]:
    """What is estimated to be the fastest."""

    def choose(each: Measured) -> MatmulConfiguration:
        offered: tuple[MatmulConfiguration, ...] = SPECS[each.kernel].configurations(each.parameters, HOPPER)
        return min(offered, key=lambda c: _estimate(each.gemm, c, each.m, costs))

    return choose


def _estimate(of: Gemm, configuration: MatmulConfiguration, m: int, costs: Costs) -> float:
    if isinstance(configuration, LibraryCall):
        return library_microseconds(of, m)
    return microseconds(of, configuration, m, costs)


def mean_loss(times: Sequence[Measured], choose: Callable[[Measured], MatmulConfiguration]) -> float:
    """The geometric mean of the losses."""
    return math.exp(sum(math.log(each.loss(choose(each))) for each in times) / len(times))


def fitted(times: Sequence[Measured], start: Costs = H200) -> Costs:
    """The constants by which the logarithms of ``times`` are nearest to those of the estimates."""
    from scipy.optimize import least_squares

    samples = [(each, c, time) for each in times for c, time in each.times.items() if isinstance(c, Tiling)]

    def residuals(logarithms: np.ndarray) -> list[float]:
        costs = _costs(logarithms)
        return [math.log(microseconds(each.gemm, c, each.m, costs) / time) for each, c, time in samples]

    found = least_squares(residuals, _logarithms(start), loss="soft_l1", f_scale=0.1, max_nfev=60)
    return _costs(found.x)


def _logarithms(costs: Costs) -> np.ndarray:
    values = vars(costs).values()
    return np.log(
        [each for value in values for each in (vars(value).values() if isinstance(value, Rates) else [value])]
    )


def _costs(logarithms: np.ndarray) -> Costs:
    values = [float(value) for value in np.exp(logarithms)]
    launch, memory, l2, exchange, activation, *rest = values
    rates = (Rates(*rest[i : i + 3]) for i in range(0, len(rest), 3))
    return Costs(launch, memory, l2, exchange, activation, *rates)


def main() -> None:
    """Fit, and fit again without each weight."""
    times = measured()
    costs = fitted(times)
    print(costs)
    print(f"all weights: {mean_loss(times, chosen_by(costs)):.3f}")
    print(f"gated matmuls: {mean_loss(measured('matmul.gated'), chosen_by(costs)):.3f}")
    for parameters in dict.fromkeys(each.parameters for each in times):
        own = [each for each in times if each.parameters == parameters]
        others = fitted([each for each in times if each.parameters != parameters], costs)
        print(f"n = {parameters.n}, k = {parameters.k}, unseen: {mean_loss(own, chosen_by(others)):.3f}")


if __name__ == "__main__":
    main()
