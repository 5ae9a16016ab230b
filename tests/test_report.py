"""The table: blocks, symbols, numbers, and terminals without our letters."""

import pytest

from behaviortrace.harness import registry, report, settings
from behaviortrace.harness.checklist import CHECKS
from behaviortrace.harness.results import Result

SETTINGS = settings.parse()
VERDICTS = ("pass", "fail", "inconclusive", "not-applicable", "error")
WIDTH = 130  # columns of the widest table, all estimators under all checks


def records(verdict="pass", value=-9.87, bar=0.0, **changes):
    return [
        Result(check.id, estimator, scenario, readout, verdict, "…", value=value, bar=bar, **changes).record()
        for check in CHECKS.values()
        for readout in check.readouts
        for scenario in SETTINGS.scenarios
        for estimator in SETTINGS.estimators
    ]


def test_methods_come_first_and_controls_under_a_line_of_their_own():
    lines = report.table(records()[::-1], SETTINGS).splitlines()
    rules = [i for i, line in enumerate(lines) if line.startswith("-----")]
    assert len(rules) == 2
    above, below = lines[rules[0] + 1 : rules[1]], lines[rules[1] + 1 : lines.index("", rules[1])]
    assert len(above) + len(below) == 2 * len(registry.names())
    assert not any(registry.is_control(line.split()[0]) for line in above)
    assert all(registry.is_control(line.split()[0]) for line in below)


def test_every_number_stands_in_its_row_and_column():
    numbered = [record | {"value": i / 100} for i, record in enumerate(records())]
    value = {(r["estimator"], r["scenario"], r["check"], r["readout"]): r["value"] for r in numbered}
    columns = [(check.id, readout) for check in CHECKS.values() for readout in check.readouts]
    rows = [line.split() for line in report.table(numbered[::-1], SETTINGS).splitlines() if "✓ +" in line]
    assert len(rows) == 2 * len(registry.names())
    for estimator, scenario, *shown in rows:
        assert shown[1::2] == [f"{value[estimator, scenario, *column]:+.2f}" for column in columns]


def test_the_widest_table_fits():
    assert max(map(len, report.table(records(), SETTINGS).splitlines())) <= WIDTH


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_cell_is_a_symbol_and_a_number(verdict):
    symbol = report.SYMBOLS[verdict]
    table = report.table(records(verdict), SETTINGS)
    assert f"{symbol} -9.87" in table
    assert f"{symbol} 0.54" in report.table(records(verdict, value=0.54, bar=0.5), SETTINGS)
    assert f"{symbol} +0.54" in report.table(records(verdict, value=0.54, bar=0.0), SETTINGS)
    assert f"{symbol} {verdict}" in report.legend()


def test_only_what_was_judged_has_a_column_or_a_row():
    one = [r for r in records() if (r["check"], r["estimator"]) == ("beats-fluency", "gas")]
    lines = report.table(one, SETTINGS).splitlines()
    assert sum(line.startswith("gas") for line in lines) == 2
    assert not any(line.startswith(("tracincp", "random")) for line in lines)
    assert lines[2].split() == ["estimator", "scenario", "beats-"]


def test_runs_that_did_not_emerge_are_named_once():
    table = report.table(records(detail={"not_emerged": [2, 1]}), SETTINGS)
    assert table.splitlines()[-1].startswith(
        "the behaviour did not emerge in decoy seed 1, decoy seed 2, window seed 1, window seed 2:"
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_without_the_symbols_gets_letters(encoding):
    text = report.encodable("✓ +2.49  ✗ 0.40  ? 0.1", encoding)
    assert text == "P +2.49  F 0.40  ? 0.1"
    assert report.encodable("✓", "utf-8") == "✓"
