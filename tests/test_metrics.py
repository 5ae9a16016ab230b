"""The metrics against their definitions, written as double loops over random cases full of ties."""

import timeit

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm

from behaviortrace.harness import metrics

CASES = range(40)
ROUNDING = 1e-12  # sums of at most a few hundred terms of order 1
# 300 simulated runs put one standard error of 0.0126 on a coverage of 0.95; percentile intervals of 60
# clusters are a little narrow by nature.
COVERAGE_LOW, COVERAGE_HIGH = 0.90, 0.985
# Bars on the fastest of five tries, at least ten times what one idle core needs.
PAIR_COUNTS_SECONDS, BOOTSTRAP_SECONDS, WEIGHTS_SECONDS = 0.020, 0.5, 0.4


def rollouts(case):
    """Unequal groups, labels out of order, a one-class group, scores and covariates on a coarse grid."""
    rng = np.random.default_rng(case)
    labels = rng.permutation([907, -3, 14, 500, 2, 61, 33])[: rng.integers(2, 8)]
    group = rng.permutation(np.repeat(labels, rng.integers(1, 10, size=len(labels))))
    positive = rng.random(len(group)) < rng.choice([0.2, 0.5, 0.8])
    positive[group == labels[0]] = True
    levels = rng.choice([2, 4, 50])
    score = rng.integers(levels, size=len(group)) / 4 - 1.0
    covariate = rng.integers(6, size=len(group)) / 20.0
    return score, positive, group, covariate


def pairs_by_loops(score, positive, group, allowed):
    wins, pairs = dict.fromkeys(sorted(set(group)), 0.0), dict.fromkeys(sorted(set(group)), 0)
    for i in range(len(score)):
        for j in range(len(score)):
            if positive[i] and not positive[j] and group[i] == group[j] and allowed(i, j):
                pairs[group[i]] += 1
                wins[group[i]] += 1.0 if score[i] > score[j] else 0.5 if score[i] == score[j] else 0.0
    return list(wins.values()), list(pairs.values())


def precision_by_loops(score, truth):
    """Expected share of truth in the top |GT| when ties are broken at random, and the best block order."""
    blocks = [[t for t, x in zip(truth, score, strict=True) if x == s] for s in sorted(set(score))[::-1]]
    total = sum(truth)

    def at_cut(ordered):
        slots, found = total, 0.0
        for block in ordered:
            taken = min(slots, len(block))
            found += sum(block) * taken / len(block)
            slots -= taken
        return found / total

    precision, floor = at_cut(blocks), total / len(score)
    ceiling = at_cut(sorted(blocks, key=lambda block: -sum(block) / len(block)))
    return precision, floor, precision / floor, ceiling


def steps(case):
    rng = np.random.default_rng(1000 + case)
    s = rng.integers(2, 12)
    size = rng.integers(1, 7, size=s)
    truth = rng.integers(0, size + 1)
    truth[rng.integers(s)] += 0 if truth.any() else 1
    return rng.integers(rng.choice([1, 3, 30]), size=s) / 8, truth, size


def written_out(score, truth, size, times):
    """The rollouts of steps that were drawn `times` times each, as (score, truth) lists."""
    drawn = [(k, j) for k in range(len(score)) for _ in range(times[k]) for j in range(size[k])]
    return [score[k] for k, _ in drawn], [int(j < truth[k]) for k, j in drawn]


def simulated_run(rng, groups):
    """Groups of 16 that differ in how far positives stand out."""
    group = np.repeat(np.arange(groups), 16)
    positive = rng.random(len(group)) < 0.3
    shift = rng.normal(0.5, 1.0, size=groups)[group]
    return rng.normal(size=len(group)) + shift * positive, positive, group


# Precision at |GT|


@pytest.mark.parametrize("case", CASES)
def test_precision_is_its_definition(case):
    score, truth, *_ = rollouts(case)
    expected = pytest.approx(precision_by_loops(score, truth), abs=ROUNDING)
    assert metrics.precision_at_truth(score, truth) == expected


@pytest.mark.parametrize("case", CASES)
def test_ceiling_is_the_best_order_of_the_blocks(case):
    score, truth, *_ = rollouts(case)
    values, block = np.unique(score, return_inverse=True)
    rng = np.random.default_rng(case)
    orders = [rng.permutation(len(values)) for _ in range(30)]
    orders.append(np.bincount(block, weights=truth) / np.bincount(block))
    best = max(metrics.precision_at_truth(order[block], truth).precision for order in orders)
    assert metrics.precision_at_truth(score, truth).ceiling == pytest.approx(best, abs=ROUNDING)


def test_equal_scores_reach_the_floor_the_truth_reaches_one_and_no_truth_is_refused():
    truth = np.arange(50) % 5 == 0
    assert metrics.precision_at_truth(np.full(50, 0.1), truth) == pytest.approx((0.2, 0.2, 1.0, 0.2))
    assert metrics.precision_at_truth(truth, truth) == pytest.approx((1.0, 0.2, 5.0, 1.0))
    assert metrics.precision_at_truth(~truth, truth).precision == 0.0
    with pytest.raises(ValueError, match="at least one true rollout"):
        metrics.precision_at_truth([1.0, 2.0], [0, 0])


@pytest.mark.parametrize("case", CASES)
def test_step_precision_is_that_of_the_rollouts_written_out(case):
    score, truth, size = steps(case)
    expected = precision_by_loops(*written_out(score, truth, size, [1] * len(score)))
    assert metrics.block_precision(score, truth, size) == pytest.approx(expected, abs=ROUNDING)
    weights = metrics.resample_weights(len(score), 20, seed=case)
    resampled = np.transpose(metrics.block_precision(score, truth, size, weights))
    for figures, times in zip(resampled, weights, strict=True):
        if (times * truth).sum() == 0:
            assert np.isnan(figures).all()
            continue
        flat = written_out(score, truth, size, times)
        assert figures == pytest.approx(precision_by_loops(*flat), abs=ROUNDING)
        assert figures == pytest.approx(metrics.precision_at_truth(*flat), abs=ROUNDING)


def test_resamples_without_truth_are_nan_and_left_out_of_the_interval():
    weights = np.array([[2, 0], [0, 2], [1, 1]])
    got = metrics.block_precision([1.0, 0.0], [0, 4], [4, 4], weights)
    assert np.isnan(np.array(got)[:, 0]).all()
    assert got.precision[1:].tolist() == [1.0, 0.0]
    assert metrics.interval(got.precision, 0.0).high == pytest.approx(0.975)


def test_planted_share_counts_whole_steps_with_ties():
    planted = [1, 1, 0, 0, 0]
    assert metrics.planted_share([5, 4, 3, 2, 1], planted) == 1.0
    assert metrics.planted_share([5, 0, 3, 2, 1], planted) == 0.5
    assert metrics.planted_share([5, 4, 4, 4, 1], planted) == pytest.approx((1 + 1 / 3) / 2)
    assert metrics.planted_share([7, 7, 7, 7, 7], planted) == pytest.approx(2 / 5)
    # Second resample: step 0 three times and step 2 twice, so P = 3 and all of them lie on top.
    weights = np.array([[1, 1, 1, 1, 1], [3, 0, 2, 0, 0]])
    assert metrics.planted_share([5, 0, 3, 2, 1], planted, weights).tolist() == [0.5, 1.0]


# Within-group AUC


@pytest.mark.parametrize("width", [None, 0.0, 0.10, 0.17])
@pytest.mark.parametrize("case", CASES)
def test_pairs_are_their_definition(case, width):
    score, positive, group, covariate = rollouts(case)
    if width is None:
        matched, allowed = (), lambda i, j: True
    else:
        matched, allowed = (covariate, width), lambda i, j: abs(covariate[i] - covariate[j]) <= width
    wins, pairs = pairs_by_loops(score, positive, group, allowed)
    counts = metrics.pair_counts(score, positive, group, *matched)
    assert (counts.wins.tolist(), counts.pairs.tolist()) == (wins, pairs)
    auc = metrics.matched_pair_auc if matched else metrics.within_group_auc
    expected = (sum(wins) / sum(pairs) if sum(pairs) else np.nan, sum(pairs))
    assert auc(score, positive, group, *matched) == pytest.approx(expected, nan_ok=True)


def test_matched_pairs_default_to_a_tenth_and_drop_the_rest():
    score, positive, group = [3.0, 1.0, 2.0], [1, 0, 0], [0, 0, 0]
    assert metrics.matched_pair_auc(score, positive, group, [0.0, 0.09, 0.11]) == (1.0, 1)
    assert metrics.pair_counts(score, positive, group, [0.0, 0.09, 0.11]).pairs.tolist() == [1]


@pytest.mark.parametrize("case", CASES)
def test_auc_of_one_group_is_mann_whitney(case):
    rng = np.random.default_rng(case)
    score, positive = rng.integers(6, size=30), np.arange(30) < rng.integers(1, 30)
    u = mannwhitneyu(score[positive], score[~positive]).statistic
    got = metrics.within_group_auc(score, positive, np.zeros(30))
    assert got.pairs == positive.sum() * (~positive).sum()
    assert got.auc == pytest.approx(u / got.pairs, abs=ROUNDING)


@pytest.mark.parametrize("case", CASES)
def test_auc_turns_over_with_the_sign_and_ignores_scale_and_row_order(case):
    score, positive, group, _ = rollouts(case)
    auc, pairs = metrics.within_group_auc(score, positive, group)
    same = pytest.approx((auc, pairs), nan_ok=True, abs=ROUNDING)
    row = np.random.default_rng(case).permutation(len(score))
    assert metrics.within_group_auc(-score, positive, group) == pytest.approx((1 - auc, pairs), nan_ok=True)
    assert metrics.within_group_auc(score, ~positive, group) == pytest.approx((1 - auc, pairs), nan_ok=True)
    assert metrics.within_group_auc(np.exp(score) ** 3 - 7, positive, group) == same
    assert metrics.within_group_auc(score[row], positive[row], group[row]) == same
    assert metrics.within_group_auc(score + 3 * group, positive, group) == same
    labels = np.array([f"step {g}" for g in group], dtype=object)
    assert metrics.within_group_auc(score, positive.astype(int), labels) == same


def test_auc_without_pairs_is_nan_and_counts_none():
    auc, pairs = metrics.within_group_auc([1.0, 2.0, 3.0], [1, 1, 0], [0, 0, 1])
    assert (np.isnan(auc), pairs) == (True, 0)
    bounds = metrics.bootstrap_auc([1.0, 2.0, 3.0], [1, 1, 0], [0, 0, 1], resamples=10, seed=0)
    assert np.isnan(bounds).all()


def test_infinite_scores_rank_and_tie_but_have_no_slope():
    assert metrics.within_group_auc([np.inf, np.inf, -np.inf], [1, 0, 0], [0, 0, 0]) == (0.75, 2)
    with pytest.raises(ValueError, match="score holds infinite values"):
        metrics.residualise([np.inf, 1.0], [0.0, 1.0], [0, 0])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([1.0, np.nan], [1, 0], [0, 0]), "score holds 1 NaN of 2"),
        (([1.0, 2.0], [1, 2], [0, 0]), "only booleans or 0 and 1"),
        (([1.0, 2.0], [1, 0, 0], [0, 0]), "arrays differ in length"),
        (([1.0, 2.0], [1, 0], [[0], [0]]), "group must be one-dimensional"),
        (([1.0, 2.0], [1, 0], [0, 0], [0.0, np.inf]), "covariate holds infinite values"),
    ],
)
def test_bad_input_is_named(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        metrics.pair_counts(*arguments)


# Fluency control


@pytest.mark.parametrize("case", CASES)
def test_residual_is_that_of_least_squares_with_one_slope_and_a_mean_per_group(case):
    _, _, group, covariate = rollouts(case)
    score = 2.0 * covariate + np.random.default_rng(case).normal(size=len(group)) + group
    columns = np.column_stack([group == g for g in set(group)] + [covariate]).astype(float)
    expected = score - columns @ np.linalg.lstsq(columns, score)[0]
    residual = metrics.residualise(score, covariate, group)
    assert residual == pytest.approx(expected, abs=1e-9)
    assert columns.T @ residual == pytest.approx(0.0, abs=1e-9)


def test_a_constant_covariate_only_centres():
    score, group = np.array([0.1, 0.7, 0.4, 5.0, 5.3]), np.array([4, 4, 4, 1, 1])
    expected = [-0.3, 0.3, 0.0, -0.15, 0.15]
    assert metrics.residualise(score, [0.3] * 5, group) == pytest.approx(expected)
    assert metrics.residualise(score, [0.3] * 3 + [0.9] * 2, group) == pytest.approx(expected)


@pytest.mark.parametrize("slope", [1.0, -3.7, 1e-3])
def test_what_the_covariate_explains_leaves_ties_not_rounding_noise(slope):
    rng = np.random.default_rng(5)
    group, fluency = np.repeat(np.arange(40), 7), rng.normal(size=280)
    positive = rng.random(280) < 0.5
    residual = metrics.residualise(slope * fluency + 0.1 * group, fluency, group)
    assert metrics.within_group_auc(residual, positive, group).auc == 0.5
    # A score that its group shares leaves exact zeros, though the float mean of seven may differ from it.
    assert not metrics.residualise(0.1 * group, fluency, group).any()


# Cluster bootstrap


def test_weights_are_multinomial_counts_fixed_by_the_seed():
    weights = metrics.resample_weights(50, 4000, seed=1)
    assert weights.sum(axis=1).tolist() == [50] * 4000
    # Each cluster: mean 1, variance 49/50, covariance -1/50; 4,000 draws give standard errors of 0.016-0.03.
    assert weights.mean(axis=0) == pytest.approx(np.ones(50), abs=0.08)
    assert weights.var(axis=0) == pytest.approx(np.full(50, 0.98), abs=0.2)
    assert np.cov(weights[:, 0], weights[:, 1])[0, 1] == pytest.approx(-0.02, abs=0.08)
    assert np.array_equal(weights, metrics.resample_weights(50, 4000, seed=1))
    assert not np.array_equal(weights, metrics.resample_weights(50, 4000, seed=2))


@pytest.mark.parametrize("case", CASES)
def test_resampled_auc_keeps_copies_of_a_group_apart(case):
    score, positive, group, _ = rollouts(case)
    labels = np.unique(group)
    weights = metrics.resample_weights(len(labels), 12, seed=case)
    got = metrics.auc_resamples(metrics.pair_counts(score, positive, group), weights)
    for auc, times in zip(got, weights, strict=True):
        rows, copies = [], []
        for label, n in zip(labels, times, strict=True):
            for copy in range(n):
                member = np.flatnonzero(group == label).tolist()
                rows += member
                copies += [(int(label), copy)] * len(member)
        wins, pairs = pairs_by_loops(score[rows], positive[rows], copies, lambda i, j: True)
        assert auc == pytest.approx(sum(wins) / sum(pairs) if sum(pairs) else np.nan, nan_ok=True)


def test_interval_takes_percentiles_and_skips_nan():
    resampled = np.append(np.arange(1001.0), [np.nan] * 5)
    assert metrics.interval(resampled, 3.0) == (3.0, 25.0, 975.0)
    assert np.isnan(metrics.interval([np.nan], 3.0)[1:]).all()


def test_paired_difference_is_exactly_zero_for_equals_and_narrow_for_near_equals():
    rng = np.random.default_rng(2)
    score, positive, group = simulated_run(rng, groups=100)
    near = score + 0.05 * rng.normal(size=len(score))

    def over_runs(score):
        counts = metrics.pair_counts(score, positive, group)
        weights = [metrics.resample_weights(100, 500, seed=run) for run in range(3)]
        return np.mean([metrics.auc_resamples(counts, drawn) for drawn in weights], axis=0)

    assert metrics.interval(over_runs(score) - over_runs(np.exp(score)), 0.0) == (0.0, 0.0, 0.0)
    paired, alone = metrics.interval(over_runs(score) - over_runs(near), 0.0), over_runs(score)
    ratio = (paired.high - paired.low) / np.ptp(np.percentile(alone, [2.5, 97.5]))
    assert 0 < ratio < 0.2, f"pairing should remove the shared luck of the groups, width ratio {ratio:.2f}"


def test_intervals_cover_the_truth_and_rollouts_are_not_the_clusters():
    # Positive minus negative of one group is N(shift, 2) and shift is N(0.5, 1): AUC = Phi(0.5/sqrt(3)).
    truth = norm.cdf(0.5 / np.sqrt(3))
    rng = np.random.default_rng(11)
    inside, inside_if_pairs_were_independent = 0, 0  # the second: what the simulation can tell apart
    for seed in range(300):
        score, positive, group = simulated_run(rng, groups=60)
        value, low, high = metrics.bootstrap_auc(score, positive, group, resamples=400, seed=seed)
        inside += low <= truth <= high
        pairs = metrics.within_group_auc(score, positive, group).pairs
        inside_if_pairs_were_independent += abs(value - truth) <= 1.96 * np.sqrt(value * (1 - value) / pairs)
    assert COVERAGE_LOW <= inside / 300 <= COVERAGE_HIGH, f"95 % intervals covered {inside / 300:.3f}"
    assert inside_if_pairs_were_independent / 300 < 0.75


def test_pooled_counts_bootstrap_prompts_instead_of_groups():
    score, positive, group = simulated_run(np.random.default_rng(1), groups=6)
    counts = metrics.pair_counts(score, positive, group)
    pooled = metrics.pool_counts(counts, ["b", "a", "b", "c", "a", "b"])
    for column in ("wins", "pairs"):
        per_group = getattr(counts, column)
        expected = [per_group[[1, 4]].sum(), per_group[[0, 2, 5]].sum(), per_group[3]]
        assert getattr(pooled, column).tolist() == expected


# Speed


def fastest_of_five(call):
    return min(timeit.repeat(call, number=1, repeat=5))


def test_metrics_are_fast_enough_to_run_for_every_cell_of_the_table():
    rng = np.random.default_rng(0)
    large = rng.normal(size=7680), rng.random(7680) < 0.2, np.repeat(np.arange(960), 8)
    small = [column[: 156 * 8] for column in large]
    assert fastest_of_five(lambda: metrics.pair_counts(*large, large[0])) < PAIR_COUNTS_SECONDS
    assert fastest_of_five(lambda: metrics.resample_weights(1000, 2000, seed=0)) < WEIGHTS_SECONDS
    assert fastest_of_five(lambda: metrics.bootstrap_auc(*small, resamples=5000, seed=0)) < BOOTSTRAP_SECONDS
