"""Verdicts on simulated runs with known effects."""

from dataclasses import replace

import numpy as np
import pytest

from behaviortrace.harness import metrics
from behaviortrace.harness.checklist import CHECKS, Case, beyond, judge
from behaviortrace.harness.statistics import Statistic, auc, lift, planted_share, residual
from behaviortrace.harness.trials import Scores, Trial

STEPS, GROUPS, SIZE = 30, 8, 8
N = STEPS * GROUPS * SIZE


def simulate(seed, extra=None, **changes):
    """A run in which 6 of 30 steps pay, and scores of methods whose effect is known."""
    rng = np.random.default_rng([seed, 77])
    step = np.repeat(np.arange(STEPS), GROUPS * SIZE)
    group = np.repeat(np.arange(STEPS * GROUPS), SIZE)
    planted = np.zeros(STEPS, bool)
    planted[rng.choice(STEPS, 6, replace=False)] = True
    behaviour = rng.random(N) < 0.5
    boosted = behaviour & planted[step] & (rng.random(N) < 0.5)
    fluency = -0.5 - rng.exponential(0.3, N) + 0.15 * behaviour
    noise = rng.normal(size=(6, N))
    rollout = {
        "oracle": behaviour + 2.0 * boosted + 0.1 * noise[:1].repeat(5, 0) + 0.01 * rng.normal(size=(5, N)),
        "luck": rng.normal(size=(5, N)),
        "gradient-norm": np.abs(noise[1:2]),
        "nonzero-gradient": np.ones((1, N)),
        "fluency": fluency[None] + 0.01 * noise[2:3],
        "echoes fluency": fluency[None] + 0.02 * rng.normal(size=(5, N)),
        "fickle": np.stack([behaviour * (1.0 if draw else 0.05) + noise[draw] for draw in range(5)]),
    }
    summed = {name: np.stack([np.bincount(step, row) for row in rows]) for name, rows in rollout.items()}
    summed["oracle"] = np.stack([np.bincount(step, boosted)] * 5) + 0.01 * rng.normal(size=(5, STEPS))
    scores = {name: Scores(rollout=rollout[name], step=summed[name]) for name in rollout}
    scores |= extra(rng, behaviour, fluency) if extra else {}
    trial = Trial(
        seed=seed,
        step=step,
        group=group,
        behaviour=behaviour,
        boosted=boosted,
        findable=boosted,
        planted=planted,
        fluency=fluency,
        length=rng.integers(4, 12, N),
        initial_rate=0.1,
        analysis_rate=0.5,
        final_rate=0.6,
        emerged=True,
        score=scores.__getitem__,
    )
    return replace(trial, **changes)


@pytest.fixture(scope="module")
def trials():
    return [simulate(seed) for seed in range(3)]


def verdict(check, name, readout, trials, **changes):
    case = Case(
        estimator=name,
        control=False,
        uses_target=True,
        readouts=("step", "rollout"),
        scenario="decoy",
        readout=readout,
        trials=trials,
    )
    return judge(CHECKS[check], replace(case, **changes))


def condition(result, statistic):
    (found,) = [item for item in result.conditions if item.statistic == statistic]
    return found


def rescored(trial, name, rollout, step=None):
    """The same run, where `name` has these scores."""
    scores = Scores(rollout, step)
    return replace(trial, score=lambda other: scores if other == name else trial.score(other), _scores={})


CELLS = [(check.id, readout) for check in CHECKS.values() for readout in check.readouts]


@pytest.mark.parametrize(("check", "readout"), CELLS)
def test_an_oracle_passes_every_check(trials, check, readout):
    result = verdict(check, "oracle", readout, trials)
    assert result.passed, result.statement
    assert "oracle on decoy" in result.statement
    assert set(result.per_seed) == {"0", "1", "2"}
    names = [item.statistic for item in result.conditions]
    assert len(set(names)) == len(names)
    deciding = condition(result, result.statistic)
    assert (result.value, result.low, result.bar) == (deciding.value, deciding.low, deciding.bar)


@pytest.mark.parametrize(("check", "readout"), [cell for cell in CELLS if cell[0] != "headroom"])
def test_luck_passes_no_check(check, readout):
    passed = [
        verdict(check, "luck", readout, [simulate(100 * world + s) for s in range(3)]).passed
        for world in range(6)
    ]
    assert not any(passed)


def test_what_follows_fluency_does_not_beat_it(trials):
    result = verdict("beats-fluency", "echoes fluency", "rollout", trials)
    assert result.verdict == "fail"
    assert auc(trials, "echoes fluency").interval.low > 0.5  # though it predicts the label


def test_a_suppressor_does_not_pass():
    """Nothing to see in the raw score; taking fluency out creates it."""

    def extra(rng, behaviour, fluency):
        rows = fluency - 0.15 * behaviour + 0.02 * rng.normal(size=(5, N))
        return {"suppressor": Scores(rollout=rows, step=None)}

    trials = [simulate(seed, extra) for seed in range(3)]
    raw, without = (auc(trials, "suppressor", *how).interval for how in ((), (residual,)))
    assert abs(raw.value - 0.5) < 0.02
    assert abs(without.value - 0.5) > 0.1
    flipped = [rescored(trial, "flip", -trial.score("suppressor").rollout) for trial in trials]
    assert auc(flipped, "flip", residual).interval.low > 0.5
    assert verdict("beats-fluency", "flip", "rollout", flipped).verdict == "fail"


def test_an_unstable_target_fails_across_draws(trials):
    result = verdict("stable-across-draws", "fickle", "rollout", trials)
    assert result.verdict == "fail"
    assert "beyond 0.1" in result.statement


def test_a_seed_that_is_worse_fails_across_seeds(trials):
    odd = replace(trials[2], score=lambda name: trials[2].score("luck"), _scores={})
    result = verdict("stable-across-seeds", "oracle", "rollout", [*trials[:2], odd])
    assert result.verdict == "fail"
    assert "the range over seeds" in result.statement


def test_headroom_needs_a_rate_between_the_limits(trials):
    saturated = [*trials[:2], replace(trials[2], analysis_rate=0.97)]
    result = verdict("headroom", "oracle", "step", saturated)
    assert result.verdict == "fail"
    assert "all seeds but 2" in result.statement


def test_headroom_counts_the_method_s_own_ties(trials):
    flat = [rescored(trial, "tied", np.ones((1, N)), np.ones((1, STEPS))) for trial in trials]
    for readout in ("step", "rollout"):
        assert verdict("headroom", "tied", readout, flat).verdict == "fail"


# ---- the rule


def statistic(points, spread, n=1000.0):
    points = np.asarray(points, float)
    noise = np.random.default_rng(0).normal(size=(len(points), 4000)) * spread * np.sqrt(len(points))
    return Statistic(points, points[:, None] + noise, n)


@pytest.mark.parametrize(
    ("points", "spread", "n", "expected", "words"),
    [
        ([0.7, 0.7, 0.7], 0.02, 1000, "pass", "above 0.5 on every seed"),
        ([0.9, 0.9, 0.4], 0.02, 1000, "inconclusive", "but not on seed 2"),
        ([0.3, 0.3, 0.3], 0.02, 1000, "fail", "not above 0.5"),
        ([0.5, 0.51, 0.5], 0.02, 1000, "fail", "narrow: no effect"),
        ([0.5, 0.55, 0.5], 0.10, 1000, "inconclusive", "is wide"),
        ([0.45, 0.45, 0.45], 0.10, 1000, "inconclusive", "is wide"),
        ([0.7, 0.7, 0.7], 0.02, 99, "inconclusive", "rests on 99 pairs"),
    ],
)
def test_the_verdict_rule(trials, points, spread, n, expected, words):
    part = beyond("AUC", statistic(points, spread, n), 0.5, 0.15, trials, pairs=True)
    assert part.verdict == expected
    assert words in part.words


def test_a_statistic_without_pairs_is_not_established(trials):
    empty = Statistic(np.full(3, np.nan), np.full((3, 10), np.nan), 0.0)
    part = beyond("AUC", empty, 0.5, 0.15, trials, pairs=True)
    assert part.verdict == "inconclusive"


# ---- statistics


def test_statistics_are_means_over_draws_and_seeds_of_the_metrics(trials):
    for trial, value in zip(trials, auc(trials, "oracle").seeds, strict=True):
        rows = trial.scores("oracle").rollout
        expected = [metrics.within_group_auc(row, trial.behaviour, trial.group).auc for row in rows]
        assert value == pytest.approx(np.mean(expected))
    size, spread = np.full(STEPS, GROUPS * SIZE), lift(trials, "luck")
    for trial, value in zip(trials, spread.seeds, strict=True):
        truth = np.bincount(trial.step, trial.boosted, STEPS)
        rows = trial.scores("luck").step
        assert value == pytest.approx(np.mean([metrics.block_precision(r, truth, size).lift for r in rows]))
    assert planted_share(trials, "oracle").seeds.min() == 1.0


def test_pairs_of_a_subset_keep_their_places(trials):
    """Resamples of the label `cause` are those of the groups written out."""
    trial = trials[0]
    found = auc([trial], "oracle", positive=lambda t: t.boosted, among=lambda t: t.behaviour)
    rows = trial.scores("oracle").rollout
    shown = np.flatnonzero(trial.behaviour)
    for resample in (0, 1, 17):
        values = []
        for row in rows:
            wins = pairs = 0.0
            for g, times in enumerate(trial.group_weights[resample]):
                members = shown[trial.group[shown] == g]
                for i in members[trial.boosted[members]]:
                    for j in members[~trial.boosted[members]]:
                        pairs += times
                        wins += times * ((row[i] > row[j]) + 0.5 * (row[i] == row[j]))
            values.append(wins / pairs)
        assert found.resamples[0, resample] == pytest.approx(np.mean(values))


def test_a_paired_difference_is_narrower_than_an_unpaired_one(trials):
    one, other = auc(trials, "fluency"), auc(trials, "echoes fluency")
    paired = one.minus(other).interval
    shuffled = other._replace(resamples=np.roll(other.resamples, 1, axis=1))
    unpaired = one.minus(shuffled).interval
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)


def test_the_order_of_rollouts_does_not_matter(trials):
    trial = trials[0]
    order = np.random.default_rng(5).permutation(N)
    rows = ("step", "group", "behaviour", "boosted", "findable", "fluency", "length")

    def moved(name):
        scores = trial.score(name)
        return Scores(scores.rollout[:, order], scores.step)

    changes = {row: getattr(trial, row)[order] for row in rows}
    shuffled = [replace(trial, score=moved, _scores={}, **changes), *trials[1:]]
    for check, readout in CELLS:
        before, after = (verdict(check, "fickle", readout, runs) for runs in (trials, shuffled))
        assert after.verdict == before.verdict
        assert after.value == pytest.approx(before.value, nan_ok=True)


# ---- when it does not apply, and when it is not established


@pytest.mark.parametrize(
    ("check", "name", "readout", "changes", "reason"),
    [
        ("beats-gradient-norm", "gradient-norm", "step", {"control": True}, "it is the bar itself"),
        ("beats-gradient-norm", "nonzero-gradient", "rollout", {"control": True}, "it is the bar itself"),
        ("beats-fluency", "fluency", "rollout", {"control": True}, "it is the bar itself"),
        ("headroom", "luck", "step", {"control": True}, "it is a bar for others"),
        ("beats-gradient-norm", "luck", "step", {"readouts": ("rollout",)}, "it has no step scores"),
        ("stable-across-draws", "luck", "rollout", {"uses_target": False}, "it does not read the target"),
    ],
)
def test_a_question_without_sense_is_not_asked(trials, check, name, readout, changes, reason):
    result = verdict(check, name, readout, trials, **changes)
    assert result.verdict == "not-applicable"
    assert reason in result.statement


def test_one_seed_or_one_draw_says_nothing_about_others(trials):
    assert verdict("stable-across-seeds", "oracle", "rollout", trials[:1]).verdict == "not-applicable"
    one = [
        replace(t, score=lambda name, t=t: Scores(t.score(name).rollout[:1], None), _scores={})
        for t in trials
    ]
    assert verdict("stable-across-draws", "oracle", "rollout", one).verdict == "not-applicable"


def test_without_a_cause_there_is_nothing_to_find(trials):
    nobody = np.zeros(N, bool)
    null = [replace(t, boosted=nobody, findable=nobody, _scores={}) for t in trials]
    assert verdict("beats-fluency", "oracle", "rollout", null, scenario="null").verdict == "not-applicable"
    some = [*trials[:2], null[2]]
    result = verdict("beats-gradient-norm", "oracle", "step", some)
    assert result.verdict == "inconclusive"
    assert "seed 2" in result.statement


@pytest.mark.parametrize(("check", "readout"), CELLS)
def test_a_run_that_did_not_emerge_establishes_nothing(trials, check, readout):
    runs = [*trials[:2], replace(trials[2], emerged=False, initial_rate=0.12, final_rate=0.15)]
    result = verdict(check, "oracle", readout, runs)
    assert result.verdict == "inconclusive"
    assert "seed 2 0.12 to 0.15" in result.statement
    assert result.detail["not_emerged"] == [2]


# ---- too few pairs


def showing(trial, behaviour):
    return replace(trial, behaviour=behaviour, _scores={})


@pytest.mark.parametrize("check", ["stable-across-seeds", "stable-across-draws", "beats-fluency"])
def test_the_noise_of_few_pairs_is_not_a_failure(trials, check):
    """One rollout per run shows the behaviour: 7 pairs, of which no range or sign says anything."""
    rare = [showing(trial, np.arange(N) == 5) for trial in trials]
    result = verdict(check, "luck", "rollout", rare)
    assert result.verdict == "inconclusive", result.statement
    assert "range" not in result.statement


@pytest.mark.parametrize("check", ["stable-across-seeds", "stable-across-draws"])
def test_a_range_of_seeds_with_enough_pairs_still_fails(trials, check):
    """A thin seed does not hide that the others disagree."""
    worse = replace(trials[1], score=lambda name: trials[1].score("luck"), _scores={})
    rest = [trials[0], worse] if check == "stable-across-seeds" else trials[:2]
    name = "oracle" if check == "stable-across-seeds" else "fickle"
    result = verdict(check, name, "rollout", [*rest, showing(trials[2], np.arange(N) == 5)])
    assert result.verdict == "fail", result.statement
    assert "the range over" in result.statement


@pytest.mark.parametrize("check", ["beats-gradient-norm", "beats-fluency", "stable-across-seeds"])
def test_a_seed_without_pairs_is_named(trials, check):
    """In every group of seed 2 either all or none show the behaviour."""
    whole = np.random.default_rng(0).random(STEPS * GROUPS) < 0.5
    result = verdict(check, "oracle", "rollout", [*trials[:2], showing(trials[2], whole.repeat(SIZE))])
    assert result.verdict == "inconclusive", result.statement
    assert "no pairs on seed 2" in result.statement or "seed 2: AUC" in result.statement
    assert "wide" not in result.statement
    assert "agree" not in result.statement


def test_few_pairs_of_equal_fluency_are_said_to_be_few(trials):
    apart = [replace(t, fluency=np.arange(N) * 1.0, _scores={}) for t in trials]
    result = verdict("beats-fluency", "oracle", "rollout", apart)
    assert "too few pairs of equal fluency to count (0 per seed)" in result.statement
    assert condition(result, "AUC of pairs of equal fluency").verdict == "not-applicable"


# ---- each condition and limit decides alone


def shifted(trial, *shifts):
    """One draw per shift: noise, raised by it where the behaviour shows; the AUC is Φ(shift/√2)."""
    noise = np.random.default_rng([trial.seed, 5]).normal(size=(len(shifts), N))
    return rescored(trial, "shifted", noise + np.array(shifts)[:, None] * trial.behaviour)


@pytest.mark.parametrize(("odd", "expected"), [(1.05, "pass"), (0.8, "fail")])
def test_the_range_over_seeds_has_a_limit(trials, odd, expected):
    """AUC 0.9 on two seeds, 0.12 or 0.18 less on the third."""
    runs = [shifted(trial, shift) for trial, shift in zip(trials, (1.81, 1.81, odd), strict=True)]
    result = verdict("stable-across-seeds", "shifted", "rollout", runs)
    assert result.verdict == expected, result.statement
    spread = condition(result, "range over seeds")
    assert spread.at_most
    assert (spread.bar, spread.verdict) == (0.15, expected)
    assert abs(spread.value - 0.15) < 0.05
    assert spread.low < spread.value < spread.high


@pytest.mark.parametrize(("odd", "expected"), [(1.35, "pass"), (1.1, "fail")])
def test_the_range_over_draws_has_a_limit(trials, odd, expected):
    """AUC 0.9 on four draws, 0.07 or 0.12 less on the fifth."""
    runs = [shifted(trial, 1.81, 1.81, 1.81, 1.81, odd) for trial in trials]
    result = verdict("stable-across-draws", "shifted", "rollout", runs)
    assert result.verdict == expected, result.statement
    spread = condition(result, "range over draws")
    assert (spread.bar, spread.verdict) == (0.10, expected)
    assert all(abs(value - 0.10) < 0.05 for value in spread.per_seed.values())
    assert spread.value == max(spread.per_seed.values())


@pytest.mark.parametrize(("above", "expected"), [(5, "pass"), (4, "pass"), (3, "fail"), (2, "fail")])
def test_four_of_five_draws_must_be_above_chance(trials, above, expected):
    runs = [shifted(trial, *[0.19] * above, *[0.0] * (5 - above)) for trial in trials]
    result = verdict("stable-across-draws", "shifted", "rollout", runs)
    assert result.verdict == expected, result.statement
    assert (result.low > 0.5) == (expected == "pass"), "low is that of the weakest draw that was needed"


def test_a_draw_of_wide_interval_is_not_established(trials):
    """20 rollouts show the behaviour: 140 pairs, and an interval 0.25 wide."""
    same = np.random.default_rng(3).normal(size=N)
    runs = [rescored(showing(t, np.arange(N) % 96 == 0), "luck", np.stack([same] * 5)) for t in trials]
    result = verdict("stable-across-draws", "luck", "rollout", runs)
    assert result.verdict == "inconclusive", result.statement


@pytest.mark.parametrize("check", ["stable-across-seeds", "stable-across-draws"])
def test_fluency_alone_is_not_stable(trials, check):
    assert auc(trials, "echoes fluency").interval.low > 0.6
    assert verdict(check, "echoes fluency", "rollout", trials).verdict == "fail"


@pytest.mark.parametrize("bar", ["gradient-norm", "nonzero-gradient"])
def test_either_gradient_control_can_fail_the_step_readout(trials, bar):
    equal = [rescored(t, bar, t.scores(bar).rollout, t.scores("oracle").step) for t in trials]
    result = verdict("beats-gradient-norm", "oracle", "step", equal)
    assert result.verdict == "fail", result.statement
    assert (result.value, result.bar) == (0, 0)


def test_a_lift_of_wide_interval_is_not_established(trials):
    assert verdict("beats-gradient-norm", "luck", "step", trials).verdict == "inconclusive"


def test_a_signal_weaker_than_fluency_s_does_not_beat_it(trials):
    """Raw and without fluency it is above chance: only the difference decides."""
    result = verdict("beats-fluency", "shifted", "rollout", [shifted(trial, 0.3) for trial in trials])
    assert result.verdict == "fail", result.statement
    assert result.high < 0 == result.bar
    assert min(condition(result, name).low for name in ("raw AUC", "AUC without fluency")) > 0.5


def test_nothing_in_the_raw_score_does_not_beat_a_misleading_fluency(trials):
    """Behaviour is less fluent here, so even chance beats fluency; the residual is made by the suppressor."""
    runs = []
    for trial in trials:
        rng = np.random.default_rng([trial.seed, 6])
        fluency = -0.5 - rng.exponential(0.3, N) - 0.15 * trial.behaviour
        score = fluency + 0.155 * trial.behaviour + 0.02 * rng.normal(size=N)
        run = rescored(replace(trial, fluency=fluency), "fluency", fluency[None])
        runs.append(rescored(run, "suppressor", score[None]))
    result = verdict("beats-fluency", "suppressor", "rollout", runs)
    assert result.verdict == "fail", result.statement
    assert condition(result, "AUC without fluency").low > 0.5
    assert "pairs of equal fluency agree" in result.statement
    assert result.value == pytest.approx(condition(result, "raw AUC").value)


def test_fluency_itself_does_not_beat_a_noisy_estimate_of_it(trials):
    """It has the higher AUC, and nothing is left of it without fluency."""
    runs = []
    for trial in trials:
        noisy = trial.fluency + np.random.default_rng([trial.seed, 7]).normal(size=N)
        run = rescored(trial, "fluency", noisy[None])
        runs.append(rescored(run, "copy", trial.fluency[None]))
    result = verdict("beats-fluency", "copy", "rollout", runs)
    assert result.verdict == "fail", result.statement
    assert condition(result, "raw AUC").low > auc(runs, "fluency").interval.high
    assert result.value == 0.5


def test_pairs_of_equal_fluency_must_agree(trials):
    """A curved function of fluency survives the slope; at equal fluency the score is upside down."""
    runs = []
    for trial in trials:
        rng = np.random.default_rng([trial.seed, 8])
        level = rng.integers(0, 3, N)
        behaviour = rng.random(N) < np.where(level == 1, 0.2, 0.8)
        score = (level != 1) - 0.2 * behaviour + 0.05 * rng.normal(size=N)
        run = rescored(showing(replace(trial, fluency=level * 1.0), behaviour), "curved", score[None])
        runs.append(rescored(run, "fluency", level[None] * 1.0))
    result = verdict("beats-fluency", "curved", "rollout", runs)
    assert result.verdict == "fail", result.statement
    assert min(condition(result, name).low for name in ("raw AUC", "AUC without fluency")) > 0.5
    assert "disagree" in result.statement


@pytest.mark.parametrize(("rate", "passes"), [(0.04, False), (0.05, True), (0.95, True), (0.96, False)])
def test_the_limits_of_the_probe_rate(trials, rate, passes):
    runs = [replace(trial, analysis_rate=rate, _scores={}) for trial in trials]
    assert verdict("headroom", "oracle", "step", runs).passed == passes


@pytest.mark.parametrize(("missed", "passes"), [(0.12, True), (0.08, False)])
def test_headroom_needs_a_tenth_of_precision(trials, missed, passes):
    """Gradient-norm finds all of the ground truth but this share."""
    runs = []
    for trial in trials:
        found = trial.findable.copy()
        swapped = round(missed * found.sum())
        found[np.flatnonzero(trial.findable)[:swapped]] = False
        found[np.flatnonzero(~trial.findable)[:swapped]] = True
        runs.append(rescored(trial, "gradient-norm", found[None] * 1.0, trial.scores("gradient-norm").step))
    result = verdict("headroom", "oracle", "rollout", runs)
    assert result.passed == passes
    assert result.value == pytest.approx(missed, abs=0.01)


@pytest.mark.parametrize("readout", ["step", "rollout"])
@pytest.mark.parametrize("strong", ["gradient-norm", "fluency", "length", None])
def test_room_is_what_the_written_out_precisions_leave(trials, readout, strong):
    """Findable is a part of boosted; each surface control in turn, or chance, is the one to beat."""
    rng = np.random.default_rng(9)
    findable = trials[0].boosted & (rng.random(N) < 0.6)
    hint = findable + 0.7 * rng.random(N)
    trial = replace(trials[0], findable=findable, _scores={})
    if strong in ("fluency", "length"):
        trial = replace(trial, **{strong: hint if strong == "fluency" else (10 * hint).astype(int)})
    if strong == "gradient-norm":
        trial = rescored(trial, strong, hint[None], np.bincount(trial.step, hint)[None])

    def written_out(row):
        mean = row if readout == "rollout" else np.bincount(trial.step, row) / (GROUPS * SIZE)
        return metrics.precision_at_truth(mean if readout == "rollout" else mean[trial.step], findable)

    def rows(name):
        scores = trial.scores(name)
        return scores.rollout if readout == "rollout" else scores.step[:, trial.step]

    ceiling = np.mean([metrics.precision_at_truth(row, findable).ceiling for row in rows("fickle")])
    norm = metrics.precision_at_truth(rows("gradient-norm")[0], findable).precision
    best = max(findable.mean(), norm, *(written_out(c).precision for c in (trial.fluency, trial.length)))
    result = verdict("headroom", "fickle", readout, [trial])
    assert result.value == pytest.approx(ceiling - best)


def test_figures_of_all_three_labels_are_those_of_the_metrics(trials):
    result = verdict("beats-gradient-norm", "fickle", "rollout", trials)
    expected = {"auc_behaviour": [], "auc_cause": [], "auc_planted": []}
    pairs = []
    for trial in trials:
        shown = trial.behaviour
        for row in trial.scores("fickle").rollout:
            own = metrics.within_group_auc(row, shown, trial.group)
            pairs.append(own.pairs)
            expected["auc_behaviour"].append(own.auc)
            cause = metrics.within_group_auc(row[shown], trial.boosted[shown], trial.group[shown])
            expected["auc_cause"].append(cause.auc)
            expected["auc_planted"].append(metrics.within_group_auc(row, trial.boosted, trial.group).auc)
    for label, values in expected.items():
        assert result.detail[label][0] == pytest.approx(np.mean(values)), label
    assert result.n == round(np.mean(pairs))


# ---- resamples


def drawn(trial, cluster, times):
    """Rows of one resample written out, and the copy of the cluster that each belongs to."""
    rows = [np.flatnonzero(cluster == c) for c, count in enumerate(times) for _ in range(int(count))]
    return np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(r) for r in rows])


def test_resamples_are_those_of_the_rollouts_written_out(trials):
    """Lift by steps; the label cause by groups, half of which show no behaviour at all."""
    trial = showing(trials[0], trials[0].behaviour & (trials[0].group % 2 == 1))
    lifts = lift([trial], "luck").resamples[0]
    causes = auc([trial], "fickle", positive=lambda t: t.boosted, among=lambda t: t.behaviour).resamples[0]
    for resample in (0, 1, 1999):
        rows, _ = drawn(trial, trial.step, trial.step_weights[resample])
        steps, truth = trial.step[rows], trial.boosted[rows]
        values = [metrics.precision_at_truth(s[steps], truth).lift for s in trial.scores("luck").step]
        assert lifts[resample] == pytest.approx(np.mean(values))
        rows, copies = drawn(trial, trial.group, trial.group_weights[resample])
        shown = trial.behaviour[rows]
        rows, copies = rows[shown], copies[shown]
        scores = trial.scores("fickle").rollout
        values = [metrics.within_group_auc(s[rows], trial.boosted[rows], copies).auc for s in scores]
        assert causes[resample] == pytest.approx(np.mean(values))


def test_runs_are_resampled_independently(trials):
    one, other = (trial.group_weights.ravel() for trial in trials[:2])
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.02


def test_scores_are_computed_once(trials):
    asked = []

    def score(name):
        asked.append(name)
        return trials[0].score(name)

    trial = replace(trials[0], score=score, _scores={})
    for check, readout in CELLS:
        verdict(check, "oracle", readout, [trial])
    assert len(asked) == len(set(asked)) > 1


@pytest.mark.parametrize(
    ("shift", "by_intervals", "by_points", "stable"),
    [(0.0, (0, 0.05), (0.06, 0.19), (0, 0.01)), (0.2, (0.97, 1), (0.97, 1), (0.65, 0.95))],
)
def test_false_alarms_and_power_of_the_rule(shift, by_intervals, by_points, stable):
    """300 methods of AUC 0.500 or 0.556 on the same three runs: a rule of intervals passes luck in 2 % of
    cases, a rule of points in one of eight; being above chance on every seed, about never."""
    methods = [f"method {k}" for k in range(300)]

    def extra(rng, behaviour, fluency):
        return {m: Scores(rng.normal(size=(1, N)) + shift * behaviour, None) for m in methods}

    runs = [simulate(seed, extra) for seed in range(3)]
    statistics = [auc(runs, method) for method in methods]
    rule = np.mean([beyond("AUC", s, 0.5, 0.15, runs, pairs=True).verdict == "pass" for s in statistics])
    points = np.mean([(s.seeds > 0.5).all() for s in statistics])
    every = np.mean([verdict("stable-across-seeds", m, "rollout", runs).passed for m in methods])
    for share, (least, most) in ((rule, by_intervals), (points, by_points), (every, stable)):
        assert least <= share <= most, (rule, points, every)
