"""What became faster or slower between two records of the same benchmark."""

from __future__ import annotations

from tkc.measure.record import Record, shown
from tkc.runtime.tables import PlainTable


def comparison(earlier: Record, later: Record) -> PlainTable:
    """A row for each thing measured in either: our milliseconds and our ratio to the reference, then and now.

    Times of two runs differ by a few percent by themselves; ratios, each of one run, say more where there are some.
    """
    title = f"{later.commit} on {later.device} against {earlier.commit} on {earlier.device}"
    table = PlainTable(title=title, box=None, pad_edge=False)
    table.add_column("what", overflow="fold")
    for name in ("then (ms)", "now (ms)", "speed", "ratio then", "ratio now"):
        table.add_column(name, justify="right", no_wrap=True)
    before, after = ({row.name: row for row in record.rows} for record in (earlier, later))
    for name in dict.fromkeys([*after, *before]):
        then, now = before.get(name), after.get(name)
        table.add_row(
            name,
            _number(then.ours if then else None),
            _number(now.ours if now else None),
            f"{then.ours / now.ours:.2f}×" if then and now and then.ours and now.ours else "–",
            _number(then.ratio if then else None, ".2f"),
            _number(now.ratio if now else None, ".2f"),
        )
    return table


def _number(value: float | None, form: str | None = None) -> str:
    if value is None:
        return "–"
    return shown(value) if form is None else format(value, form)
