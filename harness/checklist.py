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
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from . import metrics
from .results import Condition, Result, Verdict
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
WITHOUT_FLUENCY = "AUC without fluency"


class Part(NamedTuple):
    """One condition of a check: its statistic against a bar, the verdict, and the words for it."""

    statistic: str
    verdict: Verdict
    words: str
    interval: metrics.Interval
    bar: float
    seeds: Floats
    """(seeds,), or one of a statistic that is about one seed."""
    n: float
    at_most: bool = False
    """The bar is the largest value that passes, not one to exceed."""
    aside: bool = False
    """Its margin can't be compared with the others': of equal verdicts, theirs is shown."""


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
    worst = min((part for part in finding.parts if part.verdict != "not-applicable"), key=_severity)
    verdict = worst.verdict
    words = "; ".join([part.words for part in finding.parts] + ([finding.remark] if finding.remark else []))
    silent = [trial for trial in case.trials if not trial.emerged]
    if silent:
        verdict = "inconclusive"
        rates = ", ".join(f"seed {t.seed} {t.initial_rate:.2f} to {t.final_rate:.2f}" for t in silent)
        words = f"not established, the behaviour did not emerge (probe rate of {rates}): {words}"
    deciding = asdict(_condition(worst, case.trials)) | {"verdict": verdict}
    return replace(
        result,
        statement=result.statement + words,
        label=finding.label,
        conditions=[_condition(part, case.trials) for part in finding.parts],
        detail=finding.detail | {"not_emerged": [trial.seed for trial in silent]},
        **deciding,
    )


def _condition(part: Part, trials: Sequence[Trial]) -> Condition:
    value, low, high = map(_number, part.interval)
    per_seed = {str(trial.seed): _number(v) for trial, v in zip(trials, part.seeds, strict=True)}
    return Condition(
        part.statistic, part.verdict, value, low, high, part.bar, part.at_most, round(part.n), per_seed
    )


def _excuse(check: Check, case: Case) -> str | None:
    if case.readout not in case.readouts:
        return f"it has no {case.readout} scores"
    if not any(trial.boosted.any() for trial in case.trials):
        return "nothing was paid, so there is no cause to find"
    return check.excused(case)


def _severity(part: Part) -> tuple[int, bool, float]:
    order = ("fail", "inconclusive", "pass")
    margin = part.interval.value - part.bar
    return order.index(part.verdict), part.aside, margin if np.isfinite(margin) else -np.inf


# ---- conditions


def beyond(
    name: str,
    statistic: Statistic,
    bar: float,
    narrow: float,
    trials: Sequence[Trial],
    pairs: bool,
    what: str | None = None,
) -> Part:
    """Whether a statistic lies above its bar, by the rule at the top of this module.

    name: of the statistic. what: words for it in front of the number, if others than the name.
    """
    value, low, high = interval = statistic.interval
    below = [trial.seed for trial, v in zip(trials, statistic.seeds, strict=True) if not v > bar]
    empty = [trial.seed for trial, v in zip(trials, statistic.seeds, strict=True) if np.isnan(v)]
    text = f"{what or name} {_signed(value, bar)} [{_signed(low, bar)}, {_signed(high, bar)}]"
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
    return Part(name, verdict, words, interval, bar, statistic.seeds, statistic.n)


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
                f"lift minus {other}'s",
                own.minus(bar),
                0.0,
                NARROW_LIFT,
                trials,
                pairs=False,
                what=f"lift {own.seeds.mean():.2f} minus {other}'s {bar.seeds.mean():.2f} =",
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
    words = f"AUC {own.seeds.mean():.2f} minus gradient-norm's {bar.seeds.mean():.2f} ="
    difference = own.minus(bar)
    part = beyond("AUC minus gradient-norm's", difference, 0.0, NARROW_AUC, trials, pairs=True, what=words)
    labels = {
        "auc_behaviour": own,
        "auc_cause": auc(trials, name, positive=was_boosted, among=shows_behaviour),
        "auc_planted": auc(trials, name, positive=was_boosted),
    }
    detail = {key: _figure(statistic) for key, statistic in labels.items()}
    detail["auc_behaviour_per_seed"] = own.seeds.tolist()
    return Finding([part], "behaviour", detail)


def _beats_fluency(case: Case) -> Finding:
    trials, name = case.trials, case.estimator
    own, bar, without = auc(trials, name), auc(trials, "fluency"), auc(trials, name, residual)
    words = f"AUC {own.seeds.mean():.2f} minus fluency's {bar.seeds.mean():.2f} ="
    parts = [
        beyond("AUC minus fluency's", own.minus(bar), 0.0, NARROW_AUC, trials, pairs=True, what=words),
        beyond("raw AUC", own, CHANCE, NARROW_AUC, trials, pairs=True),
        beyond(WITHOUT_FLUENCY, without, CHANCE, NARROW_AUC, trials, pairs=True),
        _matched(auc(trials, name, width=0.10), own),
    ]
    return Finding(parts, "behaviour", {})


def _matched(matched: Statistic, own: Statistic) -> Part:
    """Whether pairs of equal fluency lean the way that all pairs do."""
    value = float(matched.seeds.mean())
    verdict: Verdict = "not-applicable"
    if matched.n < MIN_PAIRS:
        words = f"too few pairs of equal fluency to count ({matched.n:.0f} per seed)"
    elif np.isnan(value):
        words = "a seed has no pairs of equal fluency"
    else:
        agrees = (value > CHANCE) == (own.seeds.mean() > CHANCE)
        verdict = "pass" if agrees else "fail"
        words = f"pairs of equal fluency {'agree' if agrees else 'disagree'} (AUC {value:.2f})"
    name = "AUC of pairs of equal fluency"
    return Part(name, verdict, words, matched.interval, CHANCE, matched.seeds, matched.n)


def _stable_across_seeds(case: Case) -> Finding:
    trials, name = case.trials, case.estimator
    each = [auc([trial], name, residual) for trial in trials]
    parts = [
        beyond(
            f"{WITHOUT_FLUENCY}, seed {trial.seed}",
            one,
            CHANCE,
            NARROW_AUC,
            [trial],
            pairs=True,
            what=f"seed {trial.seed}: {WITHOUT_FLUENCY}",
        )
        for trial, one in zip(trials, each, strict=True)
    ]
    values = np.array([part.interval.value for part in parts])
    parts = [part._replace(seeds=values) for part in parts]
    # A range over estimates that rest on few pairs would be their noise.
    firm = [one for one in each if one.n >= MIN_PAIRS]
    if len(firm) > 1:
        parts.append(_spread("seeds", firm, SEED_RANGE, values))
    return Finding(parts, "behaviour", {})


def _stable_across_draws(case: Case) -> Finding:
    parts, spreads = [], []
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
            f"seed {trial.seed}: {WITHOUT_FLUENCY} is above 0.5 on {above} of {len(intervals)} draws, "
            f"{needed} needed ({pairs:.0f} pairs)"
        )
        name = f"{WITHOUT_FLUENCY} of the weakest draw needed, seed {trial.seed}"
        parts.append(Part(name, verdict, words, weakest, CHANCE, np.array([]), pairs))
        spreads.append(_spread("draws", draws, DRAW_RANGE, np.array([])))
    seeds = np.array([part.interval.value for part in parts])
    parts = [part._replace(seeds=seeds) for part in parts]
    firm = [spread for spread in spreads if spread.n >= MIN_PAIRS]
    if firm:
        ranges = np.array([spread.interval.value for spread in spreads])
        parts.append(max(firm, key=lambda spread: spread.interval.value)._replace(seeds=ranges))
    return Finding(parts, "behaviour", {})


def _spread(over: str, statistics: Sequence[Statistic], limit: float, seeds: Floats) -> Part:
    """Whether largest minus smallest of the statistics, each of one run, is within its limit.

    Of resamples the range is larger than of the estimates, by their noise: the interval says how large it can
    get in runs like these, and does not gate.
    """
    spread = float(np.ptp([statistic.seeds[0] for statistic in statistics]))
    resampled = np.ptp([statistic.resamples[0] for statistic in statistics], axis=0)
    verdict: Verdict = "pass" if spread <= limit else "fail"
    words = f"the range over {over} is {spread:.2f}, {'within' if spread <= limit else 'beyond'} {limit:g}"
    n = min(statistic.n for statistic in statistics)
    interval = metrics.interval(resampled, spread)
    return Part(f"range over {over}", verdict, words, interval, limit, seeds, n, at_most=True, aside=True)


def _headroom(case: Case) -> Finding:
    trials = case.trials
    room = np.array([_room(trial, case) for trial in trials])
    mean, n = float(room.mean()), float(np.mean([trial.findable.sum() for trial in trials]))
    words = f"{mean:.2f} of precision is left above chance and the surface controls, {ROOM:.2f} is needed"
    left = metrics.Interval(mean, float("nan"), float("nan"))
    parts = [Part("room", "pass" if mean >= ROOM else "fail", words, left, ROOM, room, n)]
    rates = np.array([trial.analysis_rate for trial in trials])
    low, high = RATES
    extreme = float(rates[np.argmax(np.abs(rates - (low + high) / 2))])
    outside = [str(trial.seed) for trial in trials if not low <= trial.analysis_rate <= high]
    words = f"the probe rate is between {low} and {high} on {'all seeds but ' if outside else 'every seed'}"
    words += ", ".join(outside)
    at_most = extreme > (low + high) / 2
    rate = metrics.Interval(extreme, float("nan"), float("nan"))
    bar = high if at_most else low
    parts.append(
        Part("probe rate", "fail" if outside else "pass", words, rate, bar, rates, n, at_most, aside=True)
    )
    return Finding(parts, "findable", {})


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
