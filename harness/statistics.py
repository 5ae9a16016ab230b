"""Statistics of an estimator over the runs of a scenario, with the resamples that their intervals come from.

One letter per axis: N rollouts, S steps, Q groups, D target draws, R resamples. A statistic of a run is the
mean over its draws. All estimators of a run share its resamples, so differences are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from . import metrics
from .trials import Bools, Floats, Trial


class Statistic(NamedTuple):
    """A figure of each seed, its resamples, and the pairs or rollouts that it rests on."""

    seeds: Floats
    """(seeds,)"""
    resamples: Floats
    """(seeds, R)"""
    n: float

    def minus(self, other: Statistic) -> Statistic:
        """The paired difference."""
        return Statistic(self.seeds - other.seeds, self.resamples - other.resamples, min(self.n, other.n))

    @property
    def interval(self) -> metrics.Interval:
        """Of the mean over seeds."""
        return metrics.interval(self.resamples.mean(axis=0), float(self.seeds.mean()))


def score_rows(trial: Trial, name: str, readout: str) -> Floats:
    """The estimator's scores of one readout, (D, N) or (D, S)."""
    rows: Floats | None = getattr(trial.scores(name), readout)
    if rows is None:
        raise ValueError(f"{name} has no {readout} scores")
    return rows


Draws = Iterable[tuple[float, Floats, float]]
"""Per draw: the point estimate, its (R,) resamples, and what it rests on."""


def over_draws(trials: Sequence[Trial], figures: Callable[[Trial], Draws]) -> Statistic:
    """The mean over the draws of each run, of what `figures` gives for it."""
    seeds, resamples, n = [], [], []
    for trial in trials:
        points, drawn, rests_on = zip(*figures(trial), strict=True)
        seeds.append(np.mean(points))
        resamples.append(np.mean(drawn, axis=0))
        n.append(np.mean(rests_on))
    return Statistic(np.array(seeds), np.array(resamples), float(np.mean(n)))


def lift(trials: Sequence[Trial], name: str) -> Statistic:
    """Precision at |boosted| over chance, of rollouts that each take their step's score."""

    def figures(trial: Trial) -> Draws:
        truth, size = trial.per_step(trial.boosted), trial.per_step(np.ones(len(trial.step)))
        for row in score_rows(trial, name, "step"):
            drawn = metrics.block_precision(row, truth, size, trial.step_weights)
            yield metrics.block_precision(row, truth, size).lift, drawn.lift, float(truth.sum())

    return over_draws(trials, figures)


def planted_share(trials: Sequence[Trial], name: str) -> Statistic:
    """Share of the P steps that pay which are among the P best-scored steps, in [0, 1]; chance is P/S."""

    def figures(trial: Trial) -> Draws:
        for row in score_rows(trial, name, "step"):
            drawn = metrics.planted_share(row, trial.planted, trial.step_weights)
            yield metrics.planted_share(row, trial.planted), drawn, float(trial.planted.sum())

    return over_draws(trials, figures)


Transform = Callable[[Floats, Trial], Floats]


def raw(score: Floats, trial: Trial) -> Floats:
    """The score as it is."""
    return score


def residual(score: Floats, trial: Trial) -> Floats:
    """The score without what fluency at the analysis checkpoint explains."""
    return metrics.residualise(score, trial.fluency, trial.group)


def shows_behaviour(trial: Trial) -> Bools:
    """The label `behaviour`."""
    return trial.behaviour


def was_boosted(trial: Trial) -> Bools:
    """The label `planted`; among rollouts that show the behaviour, the label `cause`."""
    return trial.boosted


def auc(
    trials: Sequence[Trial],
    name: str,
    transform: Transform = raw,
    positive: Callable[[Trial], Bools] = shows_behaviour,
    among: Callable[[Trial], Bools] | None = None,
    width: float | None = None,
    draw: int | None = None,
) -> Statistic:
    """Within-group AUC of a label.

    among: only pairs of these rollouts. width: only pairs whose fluencies differ by at most this, in nats.
    draw: only this draw, not the mean over all.
    """

    def figures(trial: Trial) -> Draws:
        keep = np.ones(len(trial.group), bool) if among is None else among(trial)
        rows = score_rows(trial, name, "rollout")
        for row in rows if draw is None else rows[[draw]]:
            counts = _pairs(transform(row, trial), positive(trial), trial, keep, width)
            total = float(counts.pairs.sum())
            point = float(counts.wins.sum()) / total if total else float("nan")
            yield point, metrics.auc_resamples(counts, trial.group_weights), total

    return over_draws(trials, figures)


def _pairs(
    score: Floats, positive: Bools, trial: Trial, keep: Bools, width: float | None
) -> metrics.PairCounts:
    """Pairs of the rollouts in `keep`; every group of the run has its place, for the resamples' sake."""
    group = trial.group[keep]
    covariate = None if width is None else trial.fluency[keep]
    counts = metrics.pair_counts(score[keep], positive[keep], group, covariate, width or 0.0)
    groups = np.unique(trial.group)
    whole = np.zeros((2, len(groups)))
    whole[:, np.searchsorted(groups, np.unique(group))] = counts
    return metrics.PairCounts(*whole)
