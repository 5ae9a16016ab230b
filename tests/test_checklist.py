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
        ([0.7, 0.7, 0.7], 0.02, 99, "inconclusive", "rests on 99 pairs"),
    ],
)
def test_the_verdict_rule(trials, points, spread, n, expected, words):
    part = beyond(statistic(points, spread, n), 0.5, 0.15, "AUC", trials, pairs=True)
    assert part.verdict == expected
    assert words in part.words


def test_a_statistic_without_pairs_is_not_established(trials):
    empty = Statistic(np.full(3, np.nan), np.full((3, 10), np.nan), 0.0)
    part = beyond(empty, 0.5, 0.15, "AUC", trials, pairs=True)
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
