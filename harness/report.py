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


def table(records: Sequence[Record], settings: Settings) -> str:
    """Heading, table and one line of legend.

    records: `Result.record()` of each cell; any subset of the cells, in any order.
    """
    cells = {(r["estimator"], r["scenario"], r["check"], r["readout"]): r for r in records}
    present = {(check, readout) for _, _, check, readout in cells}
    columns = [
        (c.id, readout) for c in CHECKS.values() for readout in c.readouts if (c.id, readout) in present
    ]
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
    return "\n".join([heading, "", body, "", legend(), *_not_emerged(records)])


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


def _cell(record: Record | None) -> str:
    if record is None:
        return ""
    symbol, value = SYMBOLS[record["verdict"]], record["value"]
    if value is None:
        return symbol
    return f"{symbol} {value:+.2f}" if record["bar"] == 0 else f"{symbol} {value:.2f}"


def _not_emerged(records: Sequence[Record]) -> list[str]:
    silent = {(r["scenario"], seed) for r in records for seed in r["detail"].get("not_emerged", ())}
    if not silent:
        return []
    runs = ", ".join(f"{scenario} seed {seed}" for scenario, seed in sorted(silent))
    return [f"the behaviour did not emerge in {runs}: nothing there is established"]
