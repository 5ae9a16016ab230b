"""The checks: for each the question it asks, the statistic, the bar, when it applies, and the verdict.

A statistic is the mean over target draws, then over seeds; its interval comes from resampling clusters inside
each run (groups for rollout scores, steps for step scores), the same resamples for every estimator of a run,
so differences are paired. Seeds are fixed: no claim about new ones is made.

    pass            the interval lies beyond the bar, and so does every seed's own estimate
    fail            it lies on the wrong side, or holds the bar and is narrow: no effect worth the name
    inconclusive    it holds the bar and is wide, or a seed disagrees: not established
    not-applicable  the question makes no sense for this estimator
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from . import metrics
from .results import Result, Verdict
from .statistics import (
    Statistic,
    auc,
    lift,
    planted_share,
    residual,
    score_rows,
    shows_behaviour,
    was_boosted,
)
from .trials import Floats, Trial

NARROW_AUC, NARROW_LIFT = 0.15, 1.0
"""An interval that holds its bar and is no wider than this says that there is no effect."""
MIN_PAIRS = 100
"""An AUC over the run's pairs that rests on fewer, mean over seeds, is inconclusive."""
SEED_RANGE, DRAW_RANGE = 0.15, 0.10
"""Largest minus smallest residualised AUC over seeds, and over draws, of a stable method."""
DRAW_SHARE = 0.8
"""Of the draws of each seed that must be above chance: 4 of 5."""
RATES = (0.05, 0.95)
"""Probe rates at the analysis checkpoint between which there is something to tell apart."""
ROOM = 0.10
"""Precision at the findable ground truth that must be left between the surface controls and the ceiling."""
CHANCE = 0.5


class Part(NamedTuple):
    """One condition of a check: its statistic against a bar, the verdict, and the words for it."""

    verdict: Verdict
    words: str
    interval: metrics.Interval
    bar: float
    seeds: Floats
    n: float


@dataclass(frozen=True)
class Case:
    """What a check judges: one estimator on one scenario in one readout."""

    estimator: str
    control: bool
    uses_target: bool
    readouts: tuple[str, ...]
    scenario: str
    readout: str
    trials: Sequence[Trial]


class Finding(NamedTuple):
    """What a judge gives: its conditions, and figures and words for the reader that gate nothing."""

    parts: list[Part]
    label: str
    detail: dict[str, Any]
    remark: str = ""


@dataclass(frozen=True)
class Check:
    """One item of the checklist."""

    id: str
    question: str
    readouts: tuple[str, ...]
    excused: Callable[[Case], str | None]
    """Why the question makes no sense for this case, or None."""
    judge: Callable[[Case], Finding]


def judge(check: Check, case: Case) -> Result:
    """The verdict of a check on a case: that of its worst condition.

    Raises EstimatorError when an estimator does not keep the contract.
    """
    result = Result(
        check=check.id,
        estimator=case.estimator,
        scenario=case.scenario,
        readout=case.readout,
        verdict="not-applicable",
        statement=f"{case.estimator} on {case.scenario} ({case.readout}): ",
    )
    excuse = _excuse(check, case)
    if excuse is not None:
        return replace(result, statement=result.statement + excuse)
    bare = [str(trial.seed) for trial in case.trials if not trial.findable.any()]
    if bare:
        words = f"no rollout of seed {', '.join(bare)} was paid and has an advantage: nothing can be found"
        return replace(result, verdict="inconclusive", statement=result.statement + words)
    finding = check.judge(case)
    worst = min(finding.parts, key=_severity)
    verdict = worst.verdict
    words = "; ".join([part.words for part in finding.parts] + ([finding.remark] if finding.remark else []))
    silent = [trial for trial in case.trials if not trial.emerged]
    if silent:
        verdict = "inconclusive"
        rates = ", ".join(f"seed {t.seed} {t.initial_rate:.2f} to {t.final_rate:.2f}" for t in silent)
        words = f"not established, the behaviour did not emerge (probe rate of {rates}): {words}"
    return replace(
        result,
        verdict=verdict,
        statement=result.statement + words,
        label=finding.label,
        value=_number(worst.interval.value),
        low=_number(worst.interval.low),
        high=_number(worst.interval.high),
        bar=worst.bar,
        n=round(worst.n),
        per_seed={str(t.seed): float(v) for t, v in zip(case.trials, worst.seeds, strict=True)},
        detail=finding.detail | {"not_emerged": [trial.seed for trial in silent]},
    )


def _excuse(check: Check, case: Case) -> str | None:
    if case.readout not in case.readouts:
        return f"it has no {case.readout} scores"
    if not any(trial.boosted.any() for trial in case.trials):
        return "nothing was paid, so there is no cause to find"
    return check.excused(case)


def _severity(part: Part) -> tuple[int, float]:
    order = ("fail", "inconclusive", "pass")
    margin = part.interval.value - part.bar
    return order.index(part.verdict), margin if np.isfinite(margin) else -np.inf


# ---- conditions


def beyond(
    statistic: Statistic, bar: float, narrow: float, what: str, trials: Sequence[Trial], pairs: bool
) -> Part:
    """Whether a statistic lies above its bar, by the rule at the top of this module."""
    value, low, high = interval = statistic.interval
    below = [trial.seed for trial, v in zip(trials, statistic.seeds, strict=True) if not v > bar]
    empty = [trial.seed for trial, v in zip(trials, statistic.seeds, strict=True) if np.isnan(v)]
    text = f"{what} {_signed(value, bar)} [{_signed(low, bar)}, {_signed(high, bar)}]"
    verdict: Verdict = "inconclusive"
    if pairs and not statistic.n >= MIN_PAIRS:
        words = f"{text} rests on {statistic.n:.0f} pairs per seed, fewer than {MIN_PAIRS}"
    elif empty:
        words = f"{text} can't be formed: no pairs on seed {', '.join(map(str, empty))}"
    elif low > bar and not below:
        verdict, words = "pass", f"{text} is above {bar:g}{' on every seed' if len(trials) > 1 else ''}"
    elif low > bar:
        words = f"{text} is above {bar:g}, but not on seed {', '.join(map(str, below))}"
    elif high <= bar:
        verdict, words = "fail", f"{text} is not above {bar:g}"
    elif high - low <= narrow:
        verdict, words = "fail", f"{text} holds {bar:g} and is narrow: no effect"
    else:
        words = f"{text} holds {bar:g} and is wide"
    return Part(verdict, words, interval, bar, statistic.seeds, statistic.n)


def _signed(value: float, bar: float) -> str:
    return f"{value:+.2f}" if bar == 0 else f"{value:.2f}"


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _figure(statistic: Statistic) -> list[float | None]:
    return [_number(x) for x in statistic.interval]


# ---- the checks


def _is_bar(*names: str) -> Callable[[Case], str | None]:
    return lambda case: "it is the bar itself" if case.estimator in names else None


def _beats_gradient_norm(case: Case) -> Finding:
    trials, name = case.trials, case.estimator
    if case.readout == "step":
        own = lift(trials, name)
        bars = {bar: lift(trials, bar) for bar in ("gradient-norm", "nonzero-gradient")}
        parts = [
            beyond(
                own.minus(bar),
                0.0,
                NARROW_LIFT,
                f"lift {own.seeds.mean():.2f} minus {other}'s {bar.seeds.mean():.2f} is",
                trials,
                pairs=False,
            )
            for other, bar in bars.items()
        ]
        share, its_share = (planted_share(trials, subject) for subject in (name, "gradient-norm"))
        detail: dict[str, Any] = {
            "lift": _figure(own),
            "lift_per_seed": own.seeds.tolist(),
            "planted_share": _figure(share),
        }
        detail |= {f"lift of {bar}": _figure(statistic) for bar, statistic in bars.items()}
        percent = (f"{statistic.seeds.mean():.0%}" for statistic in (share, its_share))
        remark = "it finds {} of the steps that pay, gradient-norm {}".format(*percent)
        return Finding(parts, "boosted", detail, remark)
    own, bar = auc(trials, name), auc(trials, "gradient-norm")
    words = f"AUC {own.seeds.mean():.2f} minus gradient-norm's {bar.seeds.mean():.2f} is"
    labels = {
        "auc_behaviour": own,
        "auc_cause": auc(trials, name, positive=was_boosted, among=shows_behaviour),
        "auc_planted": auc(trials, name, positive=was_boosted),
    }
    detail = {key: _figure(statistic) for key, statistic in labels.items()}
    detail["auc_behaviour_per_seed"] = own.seeds.tolist()
    return Finding([beyond(own.minus(bar), 0.0, NARROW_AUC, words, trials, pairs=True)], "behaviour", detail)


def _beats_fluency(case: Case) -> Finding:
    trials, name = case.trials, case.estimator
    own, bar, without = auc(trials, name), auc(trials, "fluency"), auc(trials, name, residual)
    difference = f"AUC {own.seeds.mean():.2f} minus fluency's {bar.seeds.mean():.2f} is"
    parts = [
        beyond(own.minus(bar), 0.0, NARROW_AUC, difference, trials, pairs=True),
        beyond(own, CHANCE, NARROW_AUC, "raw AUC", trials, pairs=True),
        beyond(without, CHANCE, NARROW_AUC, "AUC without fluency", trials, pairs=True),
    ]
    matched = auc(trials, name, width=0.10)
    detail = {"auc": _figure(own), "auc_residualised": _figure(without), "auc_matched": _figure(matched)}
    remark = ""
    if matched.n < MIN_PAIRS:
        remark = f"too few pairs of equal fluency to count ({matched.n:.0f} per seed)"
    elif np.isfinite(matched.seeds).all():
        value = float(matched.seeds.mean())
        agrees = (value > CHANCE) == (own.seeds.mean() > CHANCE)
        words = f"pairs of equal fluency {'agree' if agrees else 'disagree'} (AUC {value:.2f})"
        verdict: Verdict = "pass" if agrees else "fail"
        parts.append(Part(verdict, words, matched.interval, CHANCE, matched.seeds, matched.n))
    return Finding(parts, "behaviour", detail | {"matched_pairs": matched.n}, remark)


def _stable_across_seeds(case: Case) -> Finding:
    trials, name = case.trials, case.estimator
    parts = []
    for trial in trials:
        one = auc([trial], name, residual)
        part = beyond(one, CHANCE, NARROW_AUC, f"seed {trial.seed}: AUC without fluency", [trial], pairs=True)
        parts.append(part)
    values = np.array([part.interval.value for part in parts])
    parts = [part._replace(seeds=values) for part in parts]
    detail: dict[str, Any] = {"auc_residualised_per_seed": values.tolist(), "range": None}
    # A range over estimates that rest on few pairs would be their noise.
    firm = sorted((part for part in parts if part.n >= MIN_PAIRS), key=lambda part: part.interval.value)
    if len(firm) > 1:
        detail["range"] = firm[-1].interval.value - firm[0].interval.value
        parts.append(_spread(detail["range"], SEED_RANGE, "seeds", firm[0]))
    return Finding(parts, "behaviour", detail)


def _stable_across_draws(case: Case) -> Finding:
    parts, ranges = [], []
    for trial in case.trials:
        count = len(score_rows(trial, case.estimator, "rollout"))
        draws = [auc([trial], case.estimator, residual, draw=draw) for draw in range(count)]
        intervals, pairs = [draw.interval for draw in draws], draws[0].n
        above, needed = sum(i.low > CHANCE for i in intervals), ceil(DRAW_SHARE * len(intervals))
        weakest = sorted(intervals, key=lambda i: i.low)[len(intervals) - needed]  # of those needed
        verdict: Verdict = "pass" if above >= needed else "fail"
        wide = weakest.high > CHANCE and weakest.high - weakest.low > NARROW_AUC
        if pairs < MIN_PAIRS or (verdict == "fail" and wide):
            verdict = "inconclusive"
        words = (
            f"seed {trial.seed}: AUC without fluency is above 0.5 on {above} of {len(intervals)} draws, "
            f"{needed} needed ({pairs:.0f} pairs)"
        )
        values = [i.value for i in intervals]
        ranges.append(max(values) - min(values))
        parts.append(Part(verdict, words, weakest, CHANCE, np.array([]), pairs))
    seeds = np.array([part.interval.value for part in parts])
    parts = [part._replace(seeds=seeds) for part in parts]
    firm = [(spread, i) for i, spread in enumerate(ranges) if parts[i].n >= MIN_PAIRS]
    if firm:
        spread, widest = max(firm)
        parts.append(_spread(spread, DRAW_RANGE, "draws", parts[widest]))
    return Finding(parts, "behaviour", {"range_over_draws": ranges})


def _spread(spread: float, limit: float, over: str, lowest: Part) -> Part:
    """Whether a range is within its limit, reported beside the lowest estimate."""
    verdict: Verdict = "pass" if spread <= limit else "fail"
    words = f"the range over {over} is {spread:.2f}, {'within' if spread <= limit else 'beyond'} {limit:g}"
    return lowest._replace(verdict=verdict, words=words)


def _headroom(case: Case) -> Finding:
    trials = case.trials
    room, n = np.array([_room(trial, case) for trial in trials]), np.mean([t.findable.sum() for t in trials])
    mean = float(room.mean())
    rates = {trial.seed: trial.analysis_rate for trial in trials}
    outside = [seed for seed, rate in rates.items() if not RATES[0] <= rate <= RATES[1]]
    point = metrics.Interval(mean, float("nan"), float("nan"))
    words = f"{mean:.2f} of precision is left above chance and the surface controls, {ROOM:.2f} is needed"
    parts = [Part("pass" if mean >= ROOM else "fail", words, point, ROOM, room, float(n))]
    between = f"between {RATES[0]} and {RATES[1]} on {'every seed' if not outside else 'all seeds but '}"
    words = f"the probe rate is {between}{', '.join(map(str, outside))}"
    parts.append(Part("fail" if outside else "pass", words, point, ROOM, room, float(n)))
    return Finding(parts, "findable", {"analysis_rates": list(rates.values())})


def _room(trial: Trial, case: Case) -> float:
    """Ceiling under the estimator's own ties minus the best of chance and the surface controls."""
    if case.readout == "rollout":
        truth, size = trial.findable.astype(float), np.ones(len(trial.step))
        surface = [*trial.scores("gradient-norm").rollout, trial.fluency, trial.length]  # type: ignore[misc]
    else:
        truth, size = trial.per_step(trial.findable), trial.per_step(np.ones(len(trial.step)))
        means = (trial.per_step(value) / size for value in (trial.fluency, trial.length))
        surface = [*trial.scores("gradient-norm").step, *means]  # type: ignore[misc]
    rows = score_rows(trial, case.estimator, case.readout)
    own = [metrics.block_precision(row, truth, size) for row in rows]
    others = [metrics.block_precision(np.asarray(row, float), truth, size).precision for row in surface]
    return float(np.mean([figure.ceiling for figure in own]) - max(own[0].floor, *others))


def _draws_excuse(case: Case) -> str | None:
    if not case.uses_target:
        return "it does not read the target"
    if any(len(score_rows(trial, case.estimator, "rollout")) < 2 for trial in case.trials):
        return "one draw says nothing about others: ask for at least two (--bt-draws)"
    return None


CHECKS = {
    check.id: check
    for check in (
        Check(
            "beats-gradient-norm",
            "Does it find more of the cause than the size of gradients does?",
            ("step", "rollout"),
            _is_bar("gradient-norm", "nonzero-gradient"),
            _beats_gradient_norm,
        ),
        Check(
            "beats-fluency",
            "Does it see more than how likely the policy found the completion?",
            ("rollout",),
            _is_bar("fluency"),
            _beats_fluency,
        ),
        Check(
            "stable-across-seeds",
            "Is it above chance on every training seed, and about as much?",
            ("rollout",),
            lambda case: "one seed says nothing about others" if len(case.trials) < 2 else None,
            _stable_across_seeds,
        ),
        Check(
            "stable-across-draws",
            "Does the answer survive another draw of the responses that the target is built from?",
            ("rollout",),
            _draws_excuse,
            _stable_across_draws,
        ),
        Check(
            "headroom",
            "Do these runs leave room for it to be better than the surface controls?",
            ("step", "rollout"),
            lambda case: "it is a bar for others" if case.control else None,
            _headroom,
        ),
    )
}
"""By id, in the order of the table."""
