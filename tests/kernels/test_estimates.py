"""Choices by estimated times, where nothing was measured."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import pytest

import tkc
from tests.kernels.matmul_costs import HOPPER, chosen_by, mean_loss, measured
from tests.kernels.test_records import LARGE, MATMUL, MIDDLE, PARAMETERS, SMALL, record
from tkc.kernels import SPECS, Choice, Target
from tkc.kernels.choices import RecordedChoices
from tkc.kernels.estimates import estimated_choices
from tkc.kernels.matmul.cost import H200
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.records import read_records
from tkc.kernels.requests import KernelDispatch

SHIPPED = Path(tkc.__file__).parent / "tuning_db/cuda-sm_90a"


def loss(kernel: str, *, estimates: bool) -> float:
    """How much longer than the fastest the choice takes that the shipped records make, with estimates or without."""
    choices = RecordedChoices(read_records(SHIPPED), "NVIDIA H200", estimates=estimates)
    return mean_loss(
        measured(kernel),
        lambda each: choices.configuration(SPECS[kernel], each.parameters, HOPPER, {"m": each.m}),
    )


def test_estimates_choose_better_than_records_of_other_kernels() -> None:
    """Of nine weights that no record has; a choice among eight kernels loses little more."""
    assert mean_loss(measured(), chosen_by(H200)) < 1.05
    assert loss("matmul", estimates=True) < 1.07 < 1.12 < loss("matmul", estimates=False)


def test_gated_matmuls_cost_as_much_as_others() -> None:
    """The constants are those of matmuls: of gated ones the fit has seen none."""
    assert mean_loss(measured("matmul.gated"), chosen_by(H200)) < 1.03
    assert loss("matmul.gated", estimates=True) < 1.04 < 1.07 < loss("matmul.gated", estimates=False)


def test_no_size_has_a_far_better_configuration() -> None:
    """Neither small nor large sizes pay for the others."""
    times = measured()
    choices = RecordedChoices(read_records(SHIPPED), "NVIDIA H200", estimates=True)
    for few, many in pairwise((0, 16, 128, 1024, 16384)):
        own = [each for each in times if few < each.m <= many]
        found = mean_loss(own, lambda each: choices.configuration(MATMUL, each.parameters, HOPPER, {"m": each.m}))
        assert found < 1.15, (few, many)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("n", "k"), [(1000, 512), (17, 64), (4096, 1001), (128256, 4096), (96, 14336)])
def test_choices_are_a_dispatch(n: int, k: int, dtype: str) -> None:
    """Ascending, without a limit at the end, of at most eight kernels, whatever the weight."""
    parameters = MatmulParameters(n, k, dtype)  # type: ignore[arg-type]  # one of two names
    choices = RecordedChoices((), estimates=True)(MATMUL, parameters, HOPPER)
    KernelDispatch("matmul", parameters, choices, HOPPER)  # raises where they are none
    assert len({choice.configuration for choice in choices}) <= 8
    assert {choice.configuration for choice in choices} <= set(MATMUL.configurations(parameters, HOPPER))


def test_what_was_measured_is_chosen_where_it_was() -> None:
    """At the very size, and at those that have as many tiles; the table of a kernel alike hardly counts elsewhere."""
    choices = RecordedChoices([record(1000, SMALL), record(4000, MIDDLE)], estimates=True)
    at = {m: choices.configuration(MATMUL, PARAMETERS, HOPPER, {"m": m}) for m in (16, 961, 1000, 2500, 4000, 9000)}
    assert at[961] == at[1000] == SMALL and at[4000] == MIDDLE
    assert SMALL not in (at[2500], at[9000])
    chosen = choices.chosen(MATMUL, PARAMETERS, HOPPER, {"m": 1000})
    assert (chosen.origin, chosen.configuration) == ("own", SMALL)
    assert choices.chosen(MATMUL, PARAMETERS, HOPPER, {"m": 2500}).origin == "estimate"
    assert RecordedChoices(()).chosen(MATMUL, PARAMETERS, HOPPER, {"m": 2500}).origin == "default"


def test_single_records_replace_estimates_around_their_size() -> None:
    """What ``tkc tune`` measured of a model is chosen there."""
    single = dataclasses.replace(record(333, SMALL), single=True)
    choices = RecordedChoices([record(64, LARGE), single], estimates=True)
    assert choices.chosen(MATMUL, PARAMETERS, HOPPER, {"m": 333}).configuration == SMALL


def test_known_sizes_get_the_very_best() -> None:
    """Calls of one size are served by one kernel, so that nothing is saved by another."""
    choices = RecordedChoices((), estimates=True)
    for each in measured()[::5]:
        (only,) = choices(MATMUL, each.parameters, HOPPER, (each.m, each.m))
        assert only.most is None and only.configuration == chosen_by(H200)(each)
    few = choices(MATMUL, PARAMETERS, HOPPER, (100, 300))
    assert few == KernelDispatch("matmul", PARAMETERS, few, HOPPER).serving(100, 300).choices
    assert choices(MATMUL, PARAMETERS, HOPPER, (20000, 20000))[0].configuration.block_m >= 128
    assert choices(MATMUL, PARAMETERS, HOPPER, (0, 0)) and choices(MATMUL, PARAMETERS, HOPPER, (17, 2**62))


def test_what_is_tried_first() -> None:
    """After what records have, by estimates: all that there is, once each."""
    ranked = RecordedChoices([record(64, SMALL)], estimates=True).ranked(MATMUL, PARAMETERS, HOPPER, {"m": 4096})
    offered = MATMUL.configurations(PARAMETERS, HOPPER)
    assert ranked[0] == SMALL and len(ranked) == len(offered) and set(ranked) == set(offered)
    assert ranked[1].block_m * ranked[1].block_n >= 128 * 160


def test_rows_have_one_order_under_batch_invariance() -> None:
    """Estimates choose among configurations that reduce in the order of the largest size's."""
    choices = RecordedChoices(read_records(SHIPPED), "NVIDIA H200", batch_invariant=True, estimates=True)
    parameters = MatmulParameters(3584, 18944, "bfloat16", residual=True)
    found = choices(MATMUL, parameters, HOPPER)
    assert len({MATMUL.reduction_order(parameters, each.configuration, HOPPER) for each in found}) == 1


def test_kernels_without_estimates_are_chosen_by_records() -> None:
    """Other GPUs', the CPU's, those of float32, and other families."""
    single = dataclasses.replace(PARAMETERS, dtype="float32")
    others = ((Target.parse("cuda:sm_80"), PARAMETERS), (HOPPER, single), (Target.parse("cpu"), PARAMETERS))
    for target, parameters in others:
        first = MATMUL.configurations(parameters, target)[0]
        assert RecordedChoices((), estimates=True)(MATMUL, parameters, target) == (Choice(first),)
    grouped = SPECS["matmul.grouped"]
    assert grouped.estimated_microseconds(None, None, HOPPER, {"m": 1}) is None


def test_few_configurations_are_used() -> None:
    """Each is built: one that is hardly better anywhere is left out, and so is one that many sizes lack little of."""
    offered = ("steady", "best at many", "hardly better")
    times = {
        "steady": lambda m: 100.0 + m,
        "best at many": lambda m: 300.0 + m / 2,
        "hardly better": lambda m: 99.9 + m,
    }
    choices = estimated_choices(offered, lambda c, m: times[c](m), lambda _: None, {})
    assert [choice.configuration for choice in choices] in (
        ["steady", "best at many"],
        ["hardly better", "best at many"],
    )
    assert choices[0].most is not None and 256 <= choices[0].most <= 512
    (one,) = estimated_choices(offered, lambda *_: 1.0, lambda _: "steady", {})
    assert one == Choice("steady")
