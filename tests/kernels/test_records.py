"""Measured configurations: kept in a file, chosen by likeness and by size."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from tkc.databases import kernel_choices
from tkc.kernels import SPECS, Choice, KernelDispatch, Target, requests
from tkc.kernels.attention.parameters import AttentionParameters
from tkc.kernels.choices import RecordedChoices
from tkc.kernels.library_calls import without_libraries
from tkc.kernels.matmul.parameters import MatmulParameters
from tkc.kernels.matmul.tiling import Tiling
from tkc.kernels.records import FILE, KernelRecord, read_records, write_records

TARGET = Target.parse("cuda:sm_90a")
PARAMETERS = MatmulParameters(4096, 4096, "bfloat16")
MATMUL = SPECS["matmul"]
SMALL, MIDDLE, LARGE = (without_libraries(MATMUL.configurations(PARAMETERS, TARGET))[i] for i in (-1, 3, 1))


def record(rows: int, configuration: object, parameters: object = PARAMETERS, kernel: str = "matmul") -> KernelRecord:
    """A measurement at ``rows`` rows."""
    return KernelRecord(
        kernel=kernel,
        parameters=dataclasses.asdict(parameters),  # type: ignore[call-overload]
        configuration=dataclasses.asdict(configuration),  # type: ignore[call-overload]
        target=str(TARGET),
        sizes={"m": rows},
        milliseconds=1.0,
        device="GPU",
        versions={},
        time="2026-01-01T00:00:00+00:00",
    )


def test_limits_lie_between_the_measured_sizes() -> None:
    """By ratio; neighbours with one configuration are one choice, and the largest serves all that is larger."""
    choose = RecordedChoices([record(1024, LARGE), record(1, SMALL), record(16, SMALL), record(64, MIDDLE)])
    assert choose(MATMUL, PARAMETERS, TARGET) == (Choice(SMALL, 32), Choice(MIDDLE, 256), Choice(LARGE))


def test_the_nearest_kernel_decides() -> None:
    """By doublings of its sizes and by other options; one that is too far, or another target's, does not."""
    near, far = dataclasses.replace(PARAMETERS, n=6144), dataclasses.replace(PARAMETERS, n=28672)
    choose = RecordedChoices([record(64, LARGE, far), record(64, SMALL, near)])
    assert choose(MATMUL, PARAMETERS, TARGET) == (Choice(SMALL),)
    with_bias = dataclasses.replace(far, bias=True)
    assert choose(MATMUL, with_bias, TARGET) == (Choice(LARGE),)
    unlike = dataclasses.replace(PARAMETERS, n=64, k=64)
    assert choose(MATMUL, unlike, TARGET) == (Choice(MATMUL.configurations(unlike, TARGET)[0]),)
    other = Target.parse("cuda:sm_80")
    assert choose(MATMUL, PARAMETERS, other) == (Choice(MATMUL.configurations(PARAMETERS, other)[0]),)


def test_what_hardly_matters_hardly_counts() -> None:
    """Masks, layouts, epilogues and factors; kernels that have the same of these still come first."""
    decode = SPECS["attention.decode"]
    parameters = AttentionParameters(32, 8, 128, 128, "bfloat16", 128**-0.5)
    tuned = decode.configurations(parameters, TARGET)[2]
    measured = dataclasses.replace(record(1, tuned, parameters, "attention.decode"), sizes={"batch": 1, "keys": 4096})
    masked = AttentionParameters(
        *(32, 8, 128, 128, "float16", 0.1),
        **{"mask": "additive", "mask_per_batch": True, "mask_per_head": True},
        **{f"{name}_layout": "bhsd" for name in ("q", "k", "v", "out")},
    )
    assert RecordedChoices([measured])(decode, masked, TARGET) == (Choice(tuned),)

    scaled = dataclasses.replace(parameters, num_heads=256, scale=0.1)  # three doublings, the most there may be
    assert RecordedChoices([measured])(decode, scaled, TARGET) == (Choice(tuned),)

    half = dataclasses.replace(PARAMETERS, dtype="float16")
    choose = RecordedChoices([record(64, SMALL), record(64, LARGE, half)])
    assert choose(MATMUL, half, TARGET) == (Choice(LARGE),)

    plain, added = PARAMETERS, dataclasses.replace(PARAMETERS, residual=True, bias=True)
    choose = RecordedChoices([record(64, SMALL, plain), record(64, LARGE, added)])
    assert choose(MATMUL, dataclasses.replace(added, activation="gelu"), TARGET) == (Choice(LARGE),)
    wider = dataclasses.replace(added, n=8192)
    choose = RecordedChoices([record(64, SMALL, plain), record(64, LARGE, wider)])
    assert choose(MATMUL, added, TARGET) == (Choice(SMALL),)


def test_several_outputs_are_as_good_as_one() -> None:
    """A product that writes query, key and value is tiled as one of as many columns."""
    merged = dataclasses.replace(PARAMETERS, n=6144, outputs=(4096, 1024, 1024))
    choose = RecordedChoices([record(64, LARGE), record(64, SMALL, merged)])
    assert choose(MATMUL, dataclasses.replace(PARAMETERS, n=6144), TARGET) == (Choice(SMALL),)


def test_minor_parameters_exist() -> None:
    """A name that no parameter has would count for nothing."""
    for spec in SPECS.values():
        assert spec.minor_parameters <= {field.name for field in dataclasses.fields(spec.parameters_type)}


def test_earlier_records_win_where_both_measured_the_same() -> None:
    """One's own come before those that are shipped."""
    assert RecordedChoices([record(64, SMALL), record(64, LARGE)])(MATMUL, PARAMETERS, TARGET) == (Choice(SMALL),)


def test_a_new_record_replaces_one_from_before_a_parameter_was_added(tmp_path: Path) -> None:
    """What was recorded without it was measured with its default."""
    old = record(64, LARGE)
    short = {name: value for name, value in old.parameters.items() if name != "residual"}
    write_records(tmp_path, [dataclasses.replace(old, parameters=short)])
    write_records(tmp_path, [record(64, SMALL)])
    (kept,) = read_records(tmp_path)
    assert kept.request.configuration == SMALL


def test_this_device_comes_before_others_which_are_named() -> None:
    """Another device's records serve where this one has none, whatever their order."""
    other = dataclasses.replace(record(64, LARGE), device="another GPU")
    choose = RecordedChoices([other, record(64, SMALL)], "GPU")
    assert choose(MATMUL, PARAMETERS, TARGET) == (Choice(SMALL),) and not choose.other_devices(
        MATMUL, PARAMETERS, TARGET
    )
    choose = RecordedChoices([other], "GPU")
    assert choose(MATMUL, PARAMETERS, TARGET) == (Choice(LARGE),)
    assert choose.other_devices(MATMUL, PARAMETERS, TARGET) == {"another GPU"}


def test_a_configuration_that_is_no_longer_offered_is_not_chosen() -> None:
    """Nor do records of unknown kernels stop anything."""
    gone = dataclasses.replace(SMALL, threads=96)
    choose = RecordedChoices([record(64, gone), dataclasses.replace(record(64, SMALL), kernel="no.such")])
    assert choose(MATMUL, PARAMETERS, TARGET) == (Choice(MATMUL.configurations(PARAMETERS, TARGET)[0]),)


def test_sizes_without_an_offered_configuration_take_the_next_kernels() -> None:
    """Blocks that stay, with which one kernel is fastest at few rows, store no float32."""
    lasting, large = (
        next(c for c in MATMUL.configurations(PARAMETERS, TARGET) if (c.blocks > 0) == stays) for stays in (True, False)
    )
    wide = dataclasses.replace(PARAMETERS, n=8192)
    records = [record(16, lasting), record(1024, large), record(16, SMALL, wide), record(64, MIDDLE, wide)]
    exact = dataclasses.replace(PARAMETERS, out_dtype="float32")
    choose = RecordedChoices(records)
    assert choose(MATMUL, PARAMETERS, TARGET) == (Choice(lasting, 128), Choice(large))
    assert choose(MATMUL, exact, TARGET) == (Choice(SMALL, 128), Choice(large))  # 64 rows were not measured here
    assert RecordedChoices(records[:2])(MATMUL, exact, TARGET) == (Choice(large),)
    elsewhere = [dataclasses.replace(record(m, SMALL, wide), device="another GPU") for m in (16, 1024)]
    choose = RecordedChoices([*records[:2], *elsewhere], "GPU")
    assert choose(MATMUL, PARAMETERS, TARGET) == (Choice(lasting, 128), Choice(large))
    assert not choose.other_devices(MATMUL, PARAMETERS, TARGET)
    assert choose.other_devices(MATMUL, exact, TARGET) == {"another GPU"}


def test_records_survive_in_a_file(tmp_path: Path) -> None:
    """Sorted, one a measurement, the newer in place of the older."""
    first, second = record(64, SMALL), record(16, LARGE)
    write_records(tmp_path, [first, second])
    write_records(tmp_path, [dataclasses.replace(first, milliseconds=0.5)])
    assert sorted(r.milliseconds for r in read_records(tmp_path)) == [0.5, 1.0]
    assert {r.request.configuration for r in read_records(tmp_path)} == {SMALL, LARGE}
    assert {path.name for path in tmp_path.iterdir()} - {f"{FILE}.lock"} == {FILE}


@pytest.mark.parametrize(
    ("content", "message"), [("{", "no kernel records"), ('{"format": 9, "records": []}', "update")]
)
def test_a_file_that_is_no_such_is_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    """And says what to do."""
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ValueError, match=f"(?s){FILE}.*{message}"):
        read_records(tmp_path)
    assert read_records(tmp_path / "nowhere") == ()


def test_a_dispatch_serves_every_size() -> None:
    """Its limits ascend and end without one; a kernel that cannot tell sizes has one configuration."""
    with pytest.raises(ValueError, match="end without one"):
        KernelDispatch("matmul", PARAMETERS, (Choice(SMALL, 8),), TARGET)
    with pytest.raises(ValueError, match="ascend"):
        KernelDispatch("matmul", PARAMETERS, (Choice(SMALL, 8), Choice(LARGE, 8), Choice(MIDDLE)), TARGET)
    head = AttentionParameters(8, 8, 64, 64, "bfloat16", 0.125)
    one = SPECS["attention.prefill"].configurations(head, TARGET)[0]
    with pytest.raises(ValueError, match="one configuration for all sizes"):
        KernelDispatch("attention.prefill", head, (Choice(one, 8), Choice(one)), TARGET)


@pytest.mark.parametrize(
    ("least", "most", "served"),
    [
        (1, 8, [(SMALL, None)]),
        (8, 9, [(SMALL, 8), (MIDDLE, None)]),
        (9, 64, [(MIDDLE, None)]),
        (64, 64, [(MIDDLE, None)]),
        (65, 10**9, [(LARGE, None)]),
        (-(2**63), 2**63 - 1, [(SMALL, 8), (MIDDLE, 64), (LARGE, None)]),
    ],
)
def test_a_dispatch_of_fewer_sizes(least: int, most: int, served: list[tuple[Tiling, int | None]]) -> None:
    """The choices that these sizes come to, of which the last has no limit."""
    choices = (Choice(SMALL, 8), Choice(MIDDLE, 64), Choice(LARGE))
    found = KernelDispatch("matmul", PARAMETERS, choices, TARGET).serving(least, most).choices
    assert [(choice.configuration, choice.most) for choice in found] == served


def single(rows: int, configuration: object, parameters: object = PARAMETERS) -> KernelRecord:
    """A measurement for one model."""
    return dataclasses.replace(record(rows, configuration, parameters), single=True)


def chosen_at(records: list[KernelRecord], *rows: int) -> list[object]:
    """The configurations at so many rows."""
    choose = RecordedChoices(records)
    return [choose.configuration(MATMUL, PARAMETERS, TARGET, {"m": size}) for size in rows]


def test_a_single_record_changes_the_table_around_its_size_alone() -> None:
    """Midway to its neighbours, be the table the kernel's own or that of one alike."""
    other = dataclasses.replace(PARAMETERS, n=6144)
    for owner in (PARAMETERS, other):
        table = [record(64, SMALL, owner), record(256, SMALL, owner), record(1024, MIDDLE, owner)]
        found = chosen_at([*table, single(333, LARGE)], 1, 256, 291, 292, 333, 583, 584, 1024, 9999)
        assert found == [SMALL, SMALL, SMALL, LARGE, LARGE, LARGE, MIDDLE, MIDDLE, MIDDLE]


def test_a_single_record_that_agrees_changes_nothing() -> None:
    """Not even where the table changes over."""
    table = [record(256, SMALL), record(512, MIDDLE)]
    assert RecordedChoices([*table, single(333, SMALL)])(MATMUL, PARAMETERS, TARGET) == RecordedChoices(table)(
        MATMUL, PARAMETERS, TARGET
    )


def test_a_single_record_without_a_table_reaches_a_factor_of_eight() -> None:
    """Beyond it is what would be chosen without any."""
    default = MATMUL.configurations(PARAMETERS, TARGET)[0]
    rows = (1, 39, 40, 320, 2560, 2561)
    assert chosen_at([single(320, SMALL)], *rows) == [default, default, SMALL, SMALL, SMALL, default]
    assert chosen_at([single(1, SMALL)], 1, 8, 9) == [SMALL, SMALL, default]


def test_a_table_nearer_than_a_single_record_decides() -> None:
    """What was measured for one model does not change another that has records of its own."""
    other = dataclasses.replace(PARAMETERS, n=6144)
    assert chosen_at([record(333, SMALL), single(333, LARGE, other)], 333) == [SMALL]
    assert chosen_at([record(333, SMALL, dataclasses.replace(other, k=8192)), single(333, LARGE, other)], 333) == [
        LARGE
    ]


def test_the_newest_single_record_decides_where_calls_do_not_tell_sizes_apart() -> None:
    """Of attention, by the number of its sequences alone."""
    decode = SPECS["attention.decode"]
    parameters = AttentionParameters(32, 8, 128, 128, "bfloat16", 128**-0.5)
    first, second = decode.configurations(parameters, TARGET)[1:3]
    records = [
        dataclasses.replace(
            single(1, configuration, parameters), kernel="attention.decode", sizes={"batch": 1, "keys": keys}, time=at
        )
        for keys, configuration, at in ((128, first, "2026-01-02"), (4096, second, "2026-01-01"))
    ]
    choose = RecordedChoices(records)
    assert choose.configuration(decode, parameters, TARGET, {"batch": 1, "keys": 4096}) == first
    assert choose.chosen(decode, parameters, TARGET, {"batch": 1, "keys": 128}).origin == "own"
    assert choose.chosen(decode, parameters, TARGET, {"batch": 1, "keys": 4096}).origin == "near"


def test_what_chose_is_told() -> None:
    """The very kernel and sizes, others, or nothing."""
    choose = RecordedChoices([record(64, MIDDLE), record(16, SMALL, dataclasses.replace(PARAMETERS, n=2048))])
    found = choose.chosen(MATMUL, PARAMETERS, TARGET, {"m": 64})
    assert (found.configuration, found.origin) == (MIDDLE, "own")
    assert choose.chosen(MATMUL, PARAMETERS, TARGET, {"m": 65}).origin == "near"
    alike = choose.chosen(MATMUL, dataclasses.replace(PARAMETERS, n=2040), TARGET, {"m": 16})
    assert (alike.origin, alike.configuration) == ("near", SMALL)
    unlike = choose.chosen(MATMUL, dataclasses.replace(PARAMETERS, n=64, k=64), TARGET, {"m": 64})
    assert (unlike.origin, unlike.record) == ("default", None)


def test_configurations_of_the_likest_records_come_first() -> None:
    """A doubling of rows is as far as one of columns."""
    records = [record(64, MIDDLE), record(4096, LARGE), record(250, SMALL, dataclasses.replace(PARAMETERS, n=6144))]
    assert RecordedChoices(records).ranked(MATMUL, PARAMETERS, TARGET, {"m": 256}) == (SMALL, MIDDLE, LARGE)


def test_a_table_keeps_what_was_measured_for_a_model(tmp_path: Path) -> None:
    """In place of its own record."""
    write_records(tmp_path, [record(64, SMALL)])
    write_records(tmp_path, [single(64, LARGE), single(65, LARGE)])
    assert [(r.sizes["m"], r.single, r.milliseconds) for r in read_records(tmp_path)] == [
        (64, False, 1.0),
        (65, True, 1.0),
    ]
    assert [r.request.configuration for r in read_records(tmp_path)] == [LARGE, LARGE]


def test_what_reads_a_kernel_s_parameters_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each compilation reads hundreds of shipped records."""
    made = []

    def adapter(kind: type) -> TypeAdapter[object]:
        made.append(kind)
        return TypeAdapter(kind)

    monkeypatch.setattr(requests, "TypeAdapter", adapter)
    requests._reader.cache_clear()
    kernel_choices(None, Target.parse("cuda:sm_90a"))
    assert made and len(made) == len(set(made))
