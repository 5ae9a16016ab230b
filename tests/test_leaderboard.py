"""The leaderboard page: blocks, ranks, numbers, and the same bytes for the same results."""

import re
from dataclasses import replace

import pytest

from behaviortrace.harness import leaderboard, registry, settings
from behaviortrace.harness.checklist import CHECKS
from behaviortrace.harness.results import Result

SETTINGS = settings.parse(estimator="gas,tracincp,trak,fluency,random")
ENVIRONMENT = {"python": "3.11.9", "versions": {"behaviortrace": "0.1.0", "torch": "2.13.0"}, "commit": "abc"}
PASSES = {"gas": 3, "trak": 5, "tracincp": 3, "fluency": 6, "random": 0}


def records(passes=PASSES, **changes):
    """Of each estimator the first so many cells outside headroom pass, the others fail."""
    rows = []
    for name in SETTINGS.estimators:
        left = passes[name]
        for check in CHECKS.values():
            for readout in check.readouts:
                for scenario in SETTINGS.scenarios:
                    verdict = "pass" if left > 0 or check.id == "headroom" else "fail"
                    left -= check.id != "headroom"
                    row = Result(check.id, name, scenario, readout, verdict, "…", value=0.54, bar=0.5)
                    rows.append(replace(row, low=0.5, high=0.58, **changes).record())
    return rows


def page(rows, **changes):
    return leaderboard.page(rows, replace(SETTINGS, **changes), ENVIRONMENT)


def rows_of(text, title):
    """The table under a heading, as lists of cells."""
    block = text.split(f"## {title}\n\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (block[0], *block[2:])]


def test_methods_and_controls_stand_apart():
    text = page(records())
    above, below = rows_of(text, "Methods"), rows_of(text, "Controls")
    assert [row[1] for row in above[1::2]] == ["`trak`", "`gas`", "`tracincp`"]
    assert [row[0] for row in below[1::2]] == ["`fluency`", "`random`"]
    assert "rank" in above[0]
    assert "rank" not in below[0]


def test_the_rank_is_the_number_of_cells_passed_without_headroom():
    above = rows_of(page(records()), "Methods")
    assert [row[0] for row in above[1::2]] == ["1", "2", "2"]
    assert [row[2] for row in above[1::2]] == ["5 of 10", "3 of 10", "3 of 10"]
    assert "Equal numbers share a rank" in page(records())


def test_what_does_not_apply_is_not_asked():
    rows = [
        {**row, "verdict": "not-applicable"}
        if (row["estimator"], row["readout"]) == ("trak", "step")
        else row
        for row in records()
    ]
    above = rows_of(page(rows), "Methods")
    assert {row[1]: row[2] for row in above[1:] if row[1]}["`trak`"] == "3 of 8"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "✓ 0.54 [0.50, 0.58]"),
        ({"value": 0.05, "bar": 0.0, "low": 0.01, "high": 0.09}, "✓ +0.05 [+0.01, +0.09]"),
        ({"value": 0.23, "bar": 0.15, "at_most": True}, "✓ 0.23>0.15 [0.50, 0.58]"),
        ({"low": None, "high": None}, "✓ 0.54"),
        ({"value": None}, "✓"),
        ({"verdict": "not-applicable", "value": None, "low": None, "high": None}, "-"),
    ],
)
def test_a_cell_is_a_symbol_a_number_and_an_interval(changes, text):
    rows = [{**row, **changes} for row in records()]
    if changes.get("value", 0) is None:
        rows = [{**row, "low": None, "high": None} for row in rows]
    assert rows_of(page(rows), "Methods")[1][4] == text


def test_every_number_stands_in_its_row_and_column():
    rows = [{**row, "value": i / 1000, "low": None, "high": None} for i, row in enumerate(records())]
    value = {(r["estimator"], r["scenario"], r["check"], r["readout"]): r["value"] for r in rows}
    text = page(rows)
    for title, first in (("Methods", 3), ("Controls", 2)):
        header, *body = rows_of(text, title)
        columns = [re.fullmatch(r"(\S+) \((\w+)\)", name).groups() for name in header[first + 1 :]]
        name = ""
        for row in body:
            name = row[first - 2].strip("`") or name
            shown = [float(cell.split()[1]) for cell in row[first + 1 :]]
            expected = [value[name, row[first], *column] for column in columns]
            assert shown == pytest.approx(expected, abs=0.0051)


def test_the_heading_says_how_it_was_made():
    heading = page(records()).splitlines()[2]
    for words in ("`tiny` (60 steps of 16 groups", "window, decoy", "seeds 0, 1, 2", "5 target draws"):
        assert words in heading
    for words in ("2000 resamples", "behaviortrace 0.1.0", "torch 2.13.0", "Python 3.11.9"):
        assert words in heading


def test_the_same_results_give_the_same_bytes():
    """In any order, at any speed, from any commit."""
    again = leaderboard.page(
        [{**row, "seconds": 7.0} for row in records()[::-1]], SETTINGS, ENVIRONMENT | {"commit": "def"}
    )
    assert again == page(records())


def test_a_change_of_one_cell_is_a_diff_of_one_line():
    before = records()
    after = [
        {**row, "value": -123.4} if (row["estimator"], row["scenario"]) == ("gas", "decoy") else row
        for row in before
    ]
    pairs = zip(page(before).splitlines(), page(after).splitlines(), strict=True)
    assert sum(a != b for a, b in pairs) == 1


def test_a_partial_session_says_so():
    assert "partial" not in page(records())
    assert "- partial: 69 of 70 cells were judged" in page(records()[:-1])


def test_errors_and_plugins_are_named(monkeypatch):
    monkeypatch.setattr(registry, "origin", lambda name: "my-package 1.0" if name == "trak" else None)
    rows = records()
    rows[0] |= {"verdict": "error", "statement": "estimator 'gas': it broke", "value": None, "low": None}
    text = page(rows)
    assert "- `trak` is of my-package 1.0" in text
    assert "- estimator 'gas': it broke" in text


def test_every_check_is_explained():
    text = page(records())
    assert all(f"- `{check.id}`: {check.question}" in text for check in CHECKS.values())
