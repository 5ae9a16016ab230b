"""The table on the terminal: estimators and scenarios against checks, controls in a block of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import SEPARATING_LINE, tabulate

from . import registry
from .checklist import CHECKS
from .settings import Settings
from .trials import RESAMPLES

SYMBOLS = {"pass": "✓", "fail": "✗", "inconclusive": "?", "not-applicable": "-", "error": "!"}
PLAIN = {"✓": "P", "✗": "F"}
"""What stands for a symbol where the terminal's encoding lacks it."""

Record = Mapping[str, Any]
Column = tuple[str, str]
"""(check, readout)."""


def table(records: Sequence[Record], settings: Settings) -> str:
    """Heading, table and one line of legend.

    records: `Result.record()` of each cell; any subset of the cells, in any order.
    """
    cells = {(r["estimator"], r["scenario"], r["check"], r["readout"]): r for r in records}
    columns = columns_of(records)
    blocks: tuple[list[Any], list[Any]] = ([], [])
    for estimator in settings.estimators:
        block = blocks[registry.is_control(estimator)]
        for scenario in settings.scenarios:
            row = [cells.get((estimator, scenario, *column)) for column in columns]
            if any(row):
                block.append([estimator, scenario, *map(_cell, row)])
    rows = [*blocks[0], *([SEPARATING_LINE] if all(blocks) else []), *blocks[1]]
    headers = [
        "estimator",
        "scenario",
        *(f"{check}-{readout}".replace("-", "-\n") for check, readout in columns),
    ]
    body = tabulate(rows, headers, tablefmt="simple", disable_numparse=True)
    heading = f"{settings.title}, 95 % intervals from {RESAMPLES} resamples"
    return "\n".join([heading, "", body, "", legend(), *not_emerged(records)])


def legend() -> str:
    """One line: what symbols, numbers and the line in the table mean."""
    symbols = "  ".join(f"{symbol} {verdict}" for verdict, symbol in SYMBOLS.items())
    return f"{symbols}  number: what decided (signed: minus its bar)  under the line: controls"


def encodable(text: str, encoding: str) -> str:
    """The text in letters that the encoding has."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        for symbol, plain in PLAIN.items():
            text = text.replace(symbol, plain)
        return text.encode(encoding, "replace").decode(encoding)
    return text


def columns_of(records: Sequence[Record]) -> list[Column]:
    """What was judged, in the order of the checklist."""
    present = {(record["check"], record["readout"]) for record in records}
    return [(c.id, readout) for c in CHECKS.values() for readout in c.readouts if (c.id, readout) in present]


def number(record: Record) -> str:
    """The symbol and the number that decided: signed if its bar is 0, beside the bar if that is a limit."""
    symbol, value, bar = SYMBOLS[record["verdict"]], record["value"], record["bar"]
    if value is None:
        return symbol
    if record["at_most"]:
        return f"{symbol} {value:.2f}{'>' if value > bar else '<'}{bar:.2f}"
    return f"{symbol} {value:+.2f}" if bar == 0 else f"{symbol} {value:.2f}"


def _cell(record: Record | None) -> str:
    return "" if record is None else number(record)


def not_emerged(records: Sequence[Record]) -> list[str]:
    """One sentence about the runs in which the behaviour did not emerge; none if there are none."""
    silent = {(r["scenario"], seed) for r in records for seed in r["detail"].get("not_emerged", ())}
    if not silent:
        return []
    runs = ", ".join(f"{scenario} seed {seed}" for scenario, seed in sorted(silent))
    return [f"the behaviour did not emerge in {runs}: nothing there is established"]
