"""How scores are read: tie-aware precision, within-group AUC, fluency control, cluster bootstrap.

One letter per axis: N rollouts, S steps (or any clusters that share one score), Q groups, R resamples.
Higher means more responsible, equal scores stay equal, and no figure depends on the order of the rows.

Mean over runs, paired: draw one `resample_weights` per run (a different seed for each run), use it for all
estimators of that run, average the (R,) arrays over the runs, subtract if wanted, and take `interval` last.
"""

from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Number = TypeVar("Number", float, Floats)

COVERAGE = 95.0  # per cent, of every interval

# A residual this small next to the centred score is rounding: the covariate explains the score completely,
# and ranking what is left would turn the last bits of a float into an AUC.
RESIDUE = 1e-9


class Precision(NamedTuple, Generic[Number]):
    """Precision at |GT|; four floats, or four (R,) arrays for resamples.

    precision: share of ground truth among the |GT| best scores, in [0, ceiling].
    floor:     |GT|/N, what equal scores reach, in (0, 1].
    lift:      precision/floor; 1 is chance.
    ceiling:   the best precision that any order of the same blocks of equal scores reaches, in [floor, 1].
    """

    precision: Number
    floor: Number
    lift: Number
    ceiling: Number


class PairAUC(NamedTuple):
    """AUC in [0, 1] (nan without pairs) and the number of pairs that it rests on."""

    auc: float
    pairs: int


class PairCounts(NamedTuple):
    """Per group, in the order of np.unique(group): pairs won (ties count half) and pairs, each (Q,)."""

    wins: Floats
    pairs: Floats


class Interval(NamedTuple):
    """A point estimate and its 95 % interval; nan bounds where nothing could be resampled."""

    value: float
    low: float
    high: float


def precision_at_truth(score: ArrayLike, truth: ArrayLike) -> Precision[float]:
    """Tie-aware precision among the |GT| rollouts with the highest scores.

    Blocks of equal score are filled in order; the block at the cut gives
    `ground truth in block × slots taken / block size`, its expectation under random tie-breaking.

    score: (N,), no NaN. truth: (N,) bool or 0/1.
    Raises ValueError when nothing is true, lengths differ, or a score is NaN.
    """
    score, true = _scores(score, "score"), _labels(truth, "truth")
    _same_length(score=score, truth=true)
    return block_precision(score, true, np.ones(len(true)))


@overload
def block_precision(
    step_score: ArrayLike, step_truth: ArrayLike, step_size: ArrayLike, weights: None = None
) -> Precision[float]: ...
@overload
def block_precision(
    step_score: ArrayLike, step_truth: ArrayLike, step_size: ArrayLike, weights: NDArray[Any]
) -> Precision[Floats]: ...
def block_precision(
    step_score: ArrayLike, step_truth: ArrayLike, step_size: ArrayLike, weights: NDArray[Any] | None = None
) -> Precision[float] | Precision[Floats]:
    """Step readout: precision at |GT| over rollouts that each take the score of their step.

    The same number as `precision_at_truth` on the S steps written out rollout by rollout, without writing
    them out. Steps of equal score form one block.

    step_score: (S,), no NaN. step_truth: (S,) true rollouts per step. step_size: (S,) rollouts per step.
    weights: (R, S) how often each resample drew each step (`resample_weights`); a step drawn w times counts
    w times and |GT| becomes Σ w·truth. None gives the point estimate as floats.

    A resample without any ground truth is nan in all four arrays, and `interval` leaves it out.
    Raises ValueError when the point estimate has no ground truth, shapes differ, a score is NaN, or a step
    holds more truth than rollouts.
    """
    score = _scores(step_score, "step_score")
    truth, size = np.asarray(step_truth, dtype=float), np.asarray(step_size, dtype=float)
    _same_length(step_score=score, step_truth=truth, step_size=size)
    if np.any(truth < 0) or np.any(truth > size) or np.any(size < 1):
        raise ValueError("each step needs at least one rollout and between 0 and step_size true ones")
    if truth.sum() < 1:
        raise ValueError(
            "precision at |GT| needs at least one true rollout, got none: nothing was planted, or the labels "
            "of another run were passed"
        )
    drawn = np.ones((1, len(score))) if weights is None else _draws(weights, len(score))

    order = np.argsort(-score, kind="stable")
    ranked = score[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    drawn = drawn[:, order]
    block_truth = np.add.reduceat(drawn * truth[order], starts, axis=1)
    block_size = np.add.reduceat(drawn * size[order], starts, axis=1)

    # Densities change with the weights wherever several steps share a block: one order per resample.
    densest = np.argsort(-_ratio(block_truth, block_size), axis=1, kind="stable")
    precision = _precision_in_order(block_truth, block_size)
    ceiling = _precision_in_order(
        np.take_along_axis(block_truth, densest, axis=1), np.take_along_axis(block_size, densest, axis=1)
    )
    total = block_truth.sum(axis=1)
    floor = np.where(total > 0, _ratio(total, block_size.sum(axis=1)), np.nan)
    figures = (precision, floor, precision / floor, ceiling)
    if weights is None:
        return Precision(*(float(figure[0]) for figure in figures))
    return Precision(*figures)


@overload
def planted_share(step_score: ArrayLike, planted: ArrayLike, weights: None = None) -> float: ...
@overload
def planted_share(step_score: ArrayLike, planted: ArrayLike, weights: NDArray[Any]) -> Floats: ...
def planted_share(
    step_score: ArrayLike, planted: ArrayLike, weights: NDArray[Any] | None = None
) -> float | Floats:
    """Share of the P planted steps found among the P best-scored steps, tie-aware, in [0, 1].

    step_score: (S,), no NaN. planted: (S,) bool or 0/1. weights: (R, S) or None, as `block_precision`.
    Chance is P/S. Raises ValueError when no step is planted, lengths differ, or a score is NaN.
    """
    steps = _labels(planted, "planted")
    return block_precision(step_score, steps, np.ones(len(steps)), weights).precision


def pair_counts(
    score: ArrayLike,
    positive: ArrayLike,
    group: ArrayLike,
    covariate: ArrayLike | None = None,
    width: float = 0.10,
) -> PairCounts:
    """Wins and pairs of (positive, negative) rollouts inside each group; ties count half.

    score: (N,), no NaN. positive: (N,) bool or 0/1. group: (N,) labels, in any order and of any sortable
    kind; a label that repeats at every step must be joined with the step by the caller.
    covariate: (N,); if given, only pairs that differ in it by at most `width` (in its own unit) count.

    Groups without a pair are kept with zeros, so that two estimators' counts, and one set of resample
    weights, line up. Raises ValueError when lengths differ, a score is NaN, or a covariate not finite.
    """
    score, positive, group = _scores(score, "score"), _labels(positive, "positive"), np.asarray(group)
    _same_length(score=score, positive=positive, group=group)
    index, _, q = _group_index(group)
    order = np.argsort(index, kind="stable")
    index, score, positive = index[order], score[order], positive[order]
    if covariate is not None:
        covariate = _finite(covariate, "covariate")
        _same_length(score=score, covariate=covariate)
        covariate = covariate[order]

    wins, pairs = np.zeros(q), np.zeros(q)
    # Rollouts of a group are neighbours now: each offset d meets all pairs (i, i + d) at once, and the
    # largest group bounds the number of offsets (7 for G = 8).
    for d in range(1, int(np.bincount(index, minlength=1).max(initial=0))):
        counted = (index[d:] == index[:-d]) & (positive[d:] != positive[:-d])
        if covariate is not None:
            counted &= np.abs(covariate[d:] - covariate[:-d]) <= width
        later = np.flatnonzero(counted) + d
        a, b = score[later], score[later - d]
        won = np.where(positive[later], a > b, a < b) + 0.5 * (a == b)
        pairs += np.bincount(index[later], minlength=q)
        wins += np.bincount(index[later], weights=won, minlength=q)
    return PairCounts(wins, pairs)


def pool_counts(counts: PairCounts, cluster: ArrayLike) -> PairCounts:
    """Counts summed over clusters of groups (groups of one prompt, say), in the order of np.unique(cluster).

    cluster: (Q,), the label of each group in the order of `counts`. Where prompts repeat over a run their
    groups are not independent, and the bootstrap must draw prompts.
    """
    index, _, n = _group_index(np.asarray(cluster))
    _same_length(counts=counts.pairs, cluster=index)
    return PairCounts(*(np.bincount(index, column, n).astype(float) for column in counts))


def within_group_auc(score: ArrayLike, positive: ArrayLike, group: ArrayLike) -> PairAUC:
    """Share of (positive, negative) pairs of one group that the positive wins, pooled over groups.

    Arguments and errors as `pair_counts`. No pairs: auc nan, pairs 0.
    """
    return _pooled(pair_counts(score, positive, group))


def matched_pair_auc(
    score: ArrayLike, positive: ArrayLike, group: ArrayLike, covariate: ArrayLike, width: float = 0.10
) -> PairAUC:
    """`within_group_auc` over only those pairs whose covariates differ by at most `width` (nats, fluency)."""
    return _pooled(pair_counts(score, positive, group, covariate, width))


def residualise(score: ArrayLike, covariate: ArrayLike, group: ArrayLike) -> Floats:
    """What is left of a score, (N,), when one pooled slope on the covariate is taken out.

    Both are centred within their group, the slope is Σ x·y / Σ x·x over all rollouts, and the residual
    y − slope·x has mean 0 in each group. A covariate that is constant within groups has slope 0. A score
    that is a linear function of the covariate leaves exact zeros (ties), not rounding noise.

    Residualising can create signal (a suppressor): a claim needs the raw AUC beside it.
    Raises ValueError when lengths differ or a value is not finite.
    """
    score, covariate, group = _finite(score, "score"), _finite(covariate, "covariate"), np.asarray(group)
    _same_length(score=score, covariate=covariate, group=group)
    y, x = _centred(score, group), _centred(covariate, group)
    spread = float(x @ x)
    residual = y - (float(x @ y) / spread) * x if spread > 0 else y
    if np.linalg.norm(residual) <= RESIDUE * np.linalg.norm(y):
        return np.zeros_like(residual)
    return residual


def resample_weights(n_clusters: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """How often each of R bootstrap resamples draws each cluster, (R, n_clusters); rows sum to n_clusters.

    The same arguments give the same weights: that is what pairs two estimators of one run.
    """
    if n_clusters < 1 or resamples < 1:
        raise ValueError(f"need at least one cluster and one resample, got {n_clusters} and {resamples}")
    drawn = np.random.default_rng(seed).integers(n_clusters, size=(resamples, n_clusters))
    # Counting draws is 5 times faster than Generator.multinomial, which walks through binomials.
    drawn += np.arange(resamples)[:, None] * n_clusters
    return np.bincount(drawn.ravel(), minlength=resamples * n_clusters).reshape(resamples, n_clusters)


def auc_resamples(counts: PairCounts, weights: NDArray[Any]) -> Floats:
    """The pooled AUC of each resample, (R,); nan where a resample has no pair.

    A group drawn twice counts its own pairs twice, and is never paired with its copy.
    weights: (R, Q), from `resample_weights`.
    """
    drawn = _draws(weights, len(counts.pairs))
    pairs = drawn @ counts.pairs
    return np.where(pairs > 0, _ratio(drawn @ counts.wins, pairs), np.nan)


def interval(resampled: ArrayLike, value: float) -> Interval:
    """The 95 % percentile interval of resampled statistics, (R,), beside the point estimate; skips nans."""
    usable = np.asarray(resampled, dtype=float)
    usable = usable[~np.isnan(usable)]
    if usable.size == 0:
        return Interval(float(value), float("nan"), float("nan"))
    tail = (100.0 - COVERAGE) / 2
    low, high = np.percentile(usable, [tail, 100.0 - tail])
    return Interval(float(value), float(low), float(high))


def bootstrap_auc(
    score: ArrayLike, positive: ArrayLike, group: ArrayLike, *, resamples: int, seed: int
) -> Interval:
    """`within_group_auc` with its 95 % percentile interval from a bootstrap that draws whole groups.

    Arguments and errors as `pair_counts`. No pairs: three nans.
    """
    counts = pair_counts(score, positive, group)
    value = _pooled(counts).auc
    return interval(auc_resamples(counts, resample_weights(len(counts.pairs), resamples, seed)), value)


def _pooled(counts: PairCounts) -> PairAUC:
    pairs = int(counts.pairs.sum())
    return PairAUC(float(counts.wins.sum() / pairs) if pairs else float("nan"), pairs)


def _precision_in_order(truth: Floats, size: Floats) -> Floats:
    """Precision at |GT| of (R, B) blocks taken from left to right; nan in rows without truth."""
    total = truth.sum(axis=1)
    slots_left = total[:, None] - (np.cumsum(size, axis=1) - size)
    found = (truth * _ratio(np.clip(slots_left, 0.0, size), size)).sum(axis=1)
    return np.where(total > 0, _ratio(found, total), np.nan)


def _ratio(above: Floats, below: Floats) -> Floats:
    """Element-wise quotient, 0 where the divisor is 0 (a block that no resample drew holds nothing)."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _centred(value: Floats, group: NDArray[Any]) -> Floats:
    """Value minus its group's mean. Equal values of a group give exact zeros, hence the shift first."""
    index, first, q = _group_index(group)
    shifted = value - value[first][index]
    mean = np.bincount(index, weights=shifted, minlength=q) / np.bincount(index, minlength=q)
    return shifted - mean[index]


def _group_index(group: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp], int]:
    """Each row's group as 0..Q-1 in sorted order, each group's first row, and Q."""
    if group.ndim != 1:
        raise ValueError(f"group must be one-dimensional, got shape {group.shape}")
    labels, first, index = np.unique(group, return_index=True, return_inverse=True)
    return index, first, len(labels)


def _draws(weights: NDArray[Any], clusters: int) -> Floats:
    drawn = np.asarray(weights, dtype=float)
    if drawn.ndim != 2 or drawn.shape[1] != clusters:
        raise ValueError(f"weights must have shape (R, {clusters}), got {drawn.shape}")
    return drawn


def _scores(value: ArrayLike, name: str) -> Floats:
    array = np.asarray(value, dtype=float)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    if np.isnan(array).any():
        raise ValueError(f"{name} holds {int(np.isnan(array).sum())} NaN of {array.size}: they have no rank")
    return array


def _finite(value: ArrayLike, name: str) -> Floats:
    array = _scores(value, name)
    if np.isinf(array).any():
        raise ValueError(f"{name} holds infinite values: no distance or slope is defined for them")
    return array


def _labels(value: ArrayLike, name: str) -> NDArray[np.bool_]:
    array = np.asarray(value)
    if array.ndim != 1 or not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name} must be one-dimensional and hold only booleans or 0 and 1")
    return array.astype(bool)


def _same_length(**arrays: NDArray[Any]) -> None:
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"arrays differ in length: {lengths}")
