"""A baseline: the results of an earlier session, and what counts as worse than them.

A verdict alone is no measure of change: near its bar it flips with the last bits of a float. A cell has got
worse when its verdict has, and a condition behind that left its interval in the baseline. So the same rule
holds on a processor that rounds otherwise.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .results import Condition, Result, ResultsError, read

Kind = Literal["worse", "noise", "better", "dropped", "new", "same"]
"""noise: a worse verdict, but an estimate inside the baseline's interval. dropped: not asked any more."""

RANK = {"error": 0, "fail": 1, "inconclusive": 2, "pass": 3}

Cell = tuple[str, str, str, str]


@dataclass(frozen=True)
class Change:
    """What became of a cell since the baseline."""

    kind: Kind
    sentence: str

    @property
    def excused(self) -> bool:
        """Whether a verdict that is no pass is what the baseline lets one expect."""
        return self.kind in ("same", "better", "noise")


@dataclass(frozen=True)
class Baseline:
    """The results of an earlier session with the same profile, seeds and number of draws."""

    path: Path
    environment: Mapping[str, Any]
    config: Mapping[str, Any]
    cells: Mapping[Cell, Result]

    @classmethod
    def load(cls, path: Path, config: Mapping[str, Any]) -> Baseline:
        """The baseline in a results file, for a session of this config (`Settings.config`).

        Raises ResultsError for a file that can't be read, and for one that can't be compared with.
        """
        content = read(path)
        then = content["config"]
        if differences := _differences(then, config):
            raise ResultsError(
                f"{path} was made with {' and '.join(differences)}: ask for the same, or make the baseline "
                "anew with --bt-results"
            )
        cells = {_cell(result): result for result in content["results"]}
        return cls(path, content["environment"], then, cells)

    def compare(self, result: Result) -> Change:
        """What became of this cell."""
        known = self.cells.get(_cell(result))
        if known is None:
            return Change("new", "not in the baseline")
        verdicts = f"{known.verdict} in the baseline"
        if result.verdict == "error":
            return Change("worse", f"{verdicts}, and now an error")
        if result.verdict == known.verdict:
            return Change("same", verdicts)
        if result.verdict == "not-applicable":
            kind: Kind = "worse" if known.verdict == "pass" else "dropped"
            return Change(kind, f"{verdicts}, and not asked any more")
        if known.verdict == "not-applicable":
            return Change("new", f"{verdicts}: nothing to compare with")
        if RANK[result.verdict] > RANK[known.verdict]:
            return Change("better", f"{verdicts}, now {result.verdict}")
        return _worse(result, known)

    def environment_changes(self, environment: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
        """What these results are made with that the baseline's were not: "torch 2.13.0, now 2.14.0"."""
        then = _flat(self.environment, self.config)
        now = _flat(environment, config)
        return [
            f"{name} {then.get(name, 'absent')}, now {now.get(name, 'absent')}"
            for name in {**then, **now}
            if then.get(name) != now.get(name)
        ]


def summary(
    baseline: Baseline,
    judged: Sequence[Result],
    environment: Mapping[str, Any],
    config: Mapping[str, Any],
    known: Iterable[str],
) -> list[str]:
    """Lines for the end of a session: how many cells changed, and which.

    known: names of all estimators that are installed.
    """
    changes = [(result, baseline.compare(result)) for result in judged]
    count = Counter(change.kind for _, change in changes)
    commit = baseline.environment.get("commit")
    lines = [
        f"against {baseline.path.name}{f' (commit {commit[:10]})' if commit else ''}: {len(judged)} cells, "
        f"{count['same']} as before, {count['worse']} worse, {count['noise']} worse by noise, "
        f"{count['better']} better, {count['dropped']} dropped, {count['new']} new"
    ]
    for kind in ("worse", "noise", "better", "dropped"):
        lines += [
            f"{kind}: {r.check} of {r.estimator} on {r.scenario} ({r.readout}): {change.sentence}"
            for r, change in changes
            if change.kind == kind
        ]
    new = Counter(result.estimator for result, change in changes if change.kind == "new")
    lines += [
        f"new: {name}, judged without a baseline in {cells} of its cells" for name, cells in new.items()
    ]
    gone = sorted({cell[1] for cell in baseline.cells} - set(known))
    lines += [f"gone: {name} is in the baseline and not installed here" for name in gone]
    return lines + [f"differs: {text}" for text in baseline.environment_changes(environment, config)]


def _worse(result: Result, known: Result) -> Change:
    before = {condition.statistic: condition for condition in known.conditions}
    verdicts = f"{known.verdict} in the baseline, now {result.verdict}"
    worse = [c for c in result.conditions if _rank(c) < _rank(before.get(c.statistic))]
    left = [c for c in worse if not _inside(c, before.get(c.statistic))]
    if worse and not left:
        return Change("noise", f"{verdicts}, but {_moves(worse, before)}, inside the baseline's interval")
    reason = f"{_moves(left, before)}, outside the baseline's interval" if left else "for another reason"
    return Change("worse", f"{verdicts}: {reason}")


def _rank(condition: Condition | None) -> int:
    """One that gates nothing is as good as passed; so is one that the baseline lacks."""
    return RANK["pass"] if condition is None else RANK.get(condition.verdict, RANK["pass"])


def _inside(condition: Condition, known: Condition | None) -> bool:
    """Whether the estimate is in the baseline's interval; if that has none, in its range over seeds."""
    if known is None or condition.value is None:
        return False
    low, high = known.low, known.high
    if low is None or high is None:
        seeds = [value for value in known.per_seed.values() if value is not None]
        if not seeds:
            return False
        low, high = min(seeds), max(seeds)
    return low <= condition.value <= high


def _moves(conditions: Iterable[Condition], before: Mapping[str, Condition]) -> str:
    texts = []
    for condition in conditions:
        known = before.get(condition.statistic)
        then = "absent" if known is None else _number(known.value)
        if known is not None and known.low is not None:
            then += f" [{_number(known.low)}, {_number(known.high)}]"
        texts.append(f"{condition.statistic} went from {then} to {_number(condition.value)}")
    return " and ".join(texts)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _cell(result: Result) -> Cell:
    return result.check, result.estimator, result.scenario, result.readout


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What keeps two sessions from being compared: "seeds 0, 1, not 0, 1, 2"."""
    then, now = (json.loads(json.dumps(config)) for config in (then, now))  # tuples are lists in a file
    found = []
    old, new = then.get("profile", {}), now["profile"]
    if old.get("name") != new["name"]:
        found.append(f"profile {old.get('name')}, not {new['name']}")
    elif changed := [name for name in {**old, **new} if old.get(name) != new.get(name)]:
        found.append(f"other settings of profile {new['name']} ({', '.join(changed)})")
    for name in ("seeds", "draws"):
        if _sorted(then.get(name)) != _sorted(now[name]):
            found.append(f"{name} {_listed(then.get(name))}, not {_listed(now[name])}")
    return found


def _sorted(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _flat(environment: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What a figure may depend on beside the code: versions and machine."""
    machine = {name: value for name, value in environment.get("machine", {}).items() if name != "cores"}
    python = {"Python": environment.get("python")}
    return python | environment.get("versions", {}) | machine | config.get("plugins", {})
