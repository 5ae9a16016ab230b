"""The leaderboard: a session's results as a markdown page, the same bytes for the same results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import registry
from .checklist import CHECKS
from .report import SYMBOLS, Column, Record, columns_of, not_emerged, number
from .settings import Settings, cells
from .trials import RESAMPLES

UNRANKED = "headroom"
"""Asks whether the runs leave room for any method; it says nothing about which is better."""

RULE = (
    f"**Rank** goes by the number of cells passed, without those of `{UNRANKED}`, which is about the runs. "
    "Equal numbers share a rank and stand in alphabetical order. What is not established counts as not "
    "passed, and so does a readout that a method lacks. A difference in rank is no test of a difference."
)
CAVEAT = (
    "The rollout label says who *shows* the behaviour, not who taught it: compare every method with "
    "`string-match`, which reads the label off the text."
)


def page(records: Sequence[Record], settings: Settings, environment: Mapping[str, Any]) -> str:
    """The page, in markdown.

    records: `Result.record()` of each cell, in any order; those of one estimator may be incomplete.
    environment: `results.environment()`.
    """
    columns = columns_of(records)
    present = [name for name in settings.estimators if any(r["estimator"] == name for r in records)]
    parts = ["# BehaviorTrace leaderboard", _heading(settings, environment), RULE, CAVEAT, _legend()]
    for title, control in (("Methods", False), ("Controls", True)):
        names = [name for name in present if registry.is_control(name) == control]
        if names:
            parts += [f"## {title}", _table(names, records, columns, settings, ranked=not control)]
    parts += ["## Checks", *(f"- `{check.id}`: {check.question}" for check in CHECKS.values())]
    parts += _remarks(records, settings, present)
    return "\n".join(_spaced(parts)) + "\n"


def _heading(settings: Settings, environment: Mapping[str, Any]) -> str:
    profile, versions = settings.profile, environment["versions"] | {"Python": environment["python"]}
    return (
        f"Profile `{profile.name}` ({profile.steps} steps of {profile.groups} groups of {profile.group_size} "
        f"rollouts), scenarios {', '.join(settings.scenarios)}, seeds {', '.join(map(str, settings.seeds))}, "
        f"{settings.draws} target draws, 95 % intervals from {RESAMPLES} resamples. "
        f"Made with {', '.join(f'{name} {version}' for name, version in versions.items())}."
    )


def _legend() -> str:
    symbols = ", ".join(f"{symbol} {verdict}" for verdict, symbol in SYMBOLS.items())
    return (
        f"{symbols}. The number is what decided, with its 95 % interval: signed if it is a difference, "
        "beside its limit if it has one."
    )


def _table(
    names: Sequence[str],
    records: Sequence[Record],
    columns: Sequence[Column],
    settings: Settings,
    ranked: bool,
) -> str:
    """One row per estimator and scenario, best first."""
    cell = {(r["estimator"], r["scenario"], r["check"], r["readout"]): r for r in records}
    passed, asked = _counts(names, records)
    rows: list[list[str]] = []
    for name in sorted(names, key=lambda name: (-passed[name], name)):
        rank = str(1 + sum(passed[other] > passed[name] for other in names))
        first = [*([rank] if ranked else []), f"`{name}`", f"{passed[name]} of {asked[name]}"]
        for scenario in settings.scenarios:
            row = [cell.get((name, scenario, *column)) for column in columns]
            if any(row):
                rows.append([*first, scenario, *map(_cell, row)])
    headers = [*(["rank"] if ranked else []), "estimator", "passed", "scenario"]
    headers += [f"{check} ({readout})" for check, readout in columns]
    # Not padded to equal widths: then a longer number would change every line.
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _counts(names: Sequence[str], records: Sequence[Record]) -> tuple[dict[str, int], dict[str, int]]:
    """Of each estimator, the cells that it passed and those that were asked of it."""
    passed, asked = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for record in records:
        if record["estimator"] in passed and record["check"] != UNRANKED:
            passed[record["estimator"]] += record["verdict"] == "pass"
            asked[record["estimator"]] += record["verdict"] != "not-applicable"
    return passed, asked


def _cell(record: Record | None) -> str:
    if record is None:
        return ""
    text = number(record)
    if record["low"] is not None and record["high"] is not None:
        sign = "+" if record["bar"] == 0 else ""
        text += f" [{record['low']:{sign}.2f}, {record['high']:{sign}.2f}]"
    return text


def _remarks(records: Sequence[Record], settings: Settings, present: Sequence[str]) -> list[str]:
    """What a reader must know about this session beside the numbers."""
    remarks = [f"`{name}` is of {origin}" for name in present if (origin := registry.origin(name))]
    remarks += sorted({r["statement"] for r in records if r["verdict"] == "error"})
    remarks += not_emerged(records)
    asked = sum(len(cells(settings, check.readouts)) for check in CHECKS.values())
    if len(records) < asked:
        remarks.append(f"partial: {len(records)} of {asked} cells were judged, so ranks may mislead")
    return ["## Remarks", *(f"- {remark}" for remark in remarks)] if remarks else []


def _spaced(parts: Sequence[str]) -> list[str]:
    """Blank lines between paragraphs, none between the items of a list."""
    lines: list[str] = []
    for part in parts:
        if lines and not (part.startswith("- ") and lines[-1].startswith("- ")):
            lines.append("")
        lines.append(part)
    return lines
