"""The built-in estimators against per-rollout loops, and the contract that every estimator must keep."""

import math
from dataclasses import dataclass, replace
from statistics import mean, stdev

import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata

from behaviortrace.estimators.group_loo import advantages_without_one, members
from behaviortrace.estimators.trak import DAMPING
from behaviortrace.harness import registry, store
from behaviortrace.harness.estimator import BrokenEstimator, rollout_scores, step_scores, trait
from behaviortrace.harness.evidence import Checkpoint, Evidence, Target, TrainingConfig
from behaviortrace.harness.grpo import advantages

CLOSE = 5e-4  # of the largest score: unit rows are rounded to float16, so their length is off by 1e-4
METHODS = ["tracincp", "gas", "grad-cos", "trak", "token-aligned", "group-loo"]
CONTROLS = [name for name in registry.BUILTINS if name not in METHODS]
STEPS, GROUPS, SIZE = 4, 2, 5


@dataclass
class World:
    """Evidence and a target on disk, and the same gradients as plain float64 arrays, (C, N, K)."""

    evidence: Evidence
    target: Target
    g: np.ndarray
    behaviour_g: np.ndarray
    t: np.ndarray

    def column(self, name):
        return self.evidence.rollouts[name].tolist()

    def targeted(self):
        """(index, checkpoint) of those with a target."""
        return [(i, c) for i, c in enumerate(self.evidence.checkpoints) if c in self.target.checkpoints]


def make_world(folder, k=32, sizes=(SIZE,) * STEPS * GROUPS, scale_rewards="group", order=None, at=(0, 1)):
    """A random run; `order` permutes its rollouts, `at` says which of the two checkpoints have a target."""
    rng = np.random.default_rng(5)
    n = sum(sizes)
    group = np.repeat(np.arange(len(sizes)), sizes)
    reward = rng.choice([0.0, 0.1, 1.0, 2.0], n)
    reward[group == 1] = 0.1  # nothing to learn from in this group
    shows = rng.random(n) < 0.5
    mask = [[bool(s), False, bool(s)] for s in shows]
    advantage = np.concatenate(
        [
            advantages(reward[group == q], size, scale_rewards) if size > 1 else [0.0]
            for q, size in enumerate(sizes)
        ]
    )
    frame = pd.DataFrame(
        {
            "step": group // GROUPS,
            "group": group,
            "prompt": [f"prompt {q}" for q in group],
            "completion": [f"completion {i}" for i in range(n)],
            "reward": reward,
            "advantage": advantage,
            "weight": rng.uniform(0.1, 1.0, n),
            "length": rng.integers(1, 12, n),
            "behaviour_mask": mask,
        }
    )
    norm = rng.lognormal(0, 2, (2, n)).astype(np.float32)
    norm[:, [3, 17]] = 0  # saturated rollouts
    arrays = {"g": rng.normal(size=(2, n, k)) + 0.5, "behaviour": rng.normal(size=(2, n, k)) + 0.5}
    logprob = -rng.random((2, n)).astype(np.float32)
    t = rng.normal(size=(2, k)).astype(np.float32)

    order = np.arange(n) if order is None else order
    frame = frame.iloc[order].reset_index(drop=True)
    norm, logprob, shown = norm[:, order], logprob[:, order], np.flatnonzero(shows[order])
    half = {}
    for scope, rows in arrays.items():
        unit = rows[:, order] / np.linalg.norm(rows[:, order], axis=2, keepdims=True) * (norm > 0)[:, :, None]
        half[scope] = unit.astype(np.float16)
    checkpoints = []
    for i, step in enumerate((2, 4)):
        place = folder / str(step)
        place.mkdir(parents=True)
        np.save(place / "completion-sketch.npy", half["g"][i])
        np.save(place / "completion-norm.npy", norm[i])
        np.save(place / "behaviour-rows.npy", shown)
        np.save(place / "behaviour-sketch.npy", half["behaviour"][i][shown])
        np.save(place / "behaviour-norm.npy", norm[i][shown])
        np.save(place / "logprob.npy", logprob[i])
        checkpoints.append(Checkpoint(step, 1e-3 * step, place, frame, folder, folder, folder))
    config = TrainingConfig(
        group_size=SIZE,
        loss_type="dr_grpo",
        scale_rewards=scale_rewards,
        learning_rates=np.full(int(frame["step"].max()) + 1, 1e-3),
        weight=frame["weight"].to_numpy(),
    )
    evidence = Evidence(frame, "certainly", tuple(checkpoints), config)
    behaviour = np.where(np.isin(np.arange(n), shown)[:, None], half["behaviour"], 0)
    scaled = [rows.astype(np.float64) * norm[:, :, None] for rows in (half["g"], behaviour)]
    return World(evidence, make_target(evidence, t, at), *scaled, t.astype(np.float64))


def make_target(evidence, t, at=(0, 1), draw=0):
    chosen = tuple(evidence.checkpoints[i] for i in at)
    return Target(
        "in-context",
        draw,
        chosen,
        {c.step: t[i] for i, c in enumerate(evidence.checkpoints) if c in chosen},
        {c.step: float(np.linalg.norm(t[i])) for i, c in enumerate(evidence.checkpoints) if c in chosen},
        pd.DataFrame(),
    )


@pytest.fixture
def world(tmp_path):
    return make_world(tmp_path / "world")


def score(name, world, target=None):
    return rollout_scores(registry.load(name), world.evidence, target or world.target)


def steps(name, world):
    return step_scores(registry.load(name), world.evidence, world.target)


def assert_close(measured, expected, what):
    assert np.abs(expected).max() > 0, f"{what}: the expected scores are all 0, nothing is compared"
    np.testing.assert_allclose(measured, expected, rtol=0, atol=CLOSE * np.abs(expected).max(), err_msg=what)


def cosine(x, y):
    lengths = math.sqrt(x @ x) * math.sqrt(y @ y)
    return x @ y / lengths if lengths > 0 else 0.0


# ---- the formulas, one rollout at a time


def tracincp(w, i):
    a, weight = w.column("advantage")[i], w.column("weight")[i]
    return sum(c.learning_rate * weight * a * (w.g[k][i] @ w.t[k]) for k, c in w.targeted())


def gas(w, i):
    sign = np.sign(w.column("advantage")[i])
    return sum(c.learning_rate * sign * cosine(w.g[k][i], w.t[k]) for k, c in w.targeted())


def grad_cos(w, i):
    k, _ = w.targeted()[-1]
    return cosine(w.g[k][i], w.t[k])


def trak(w, i):
    total = 0.0
    for k, _ in w.targeted():
        gram = w.g[k] @ w.g[k].T
        n = len(gram)
        total += np.linalg.solve(gram + DAMPING * np.trace(gram) / n * np.eye(n), w.g[k] @ w.t[k])[i]
    return w.column("advantage")[i] * total / len(w.targeted())


def token_aligned(w, i):
    return sum(w.column("advantage")[i] * cosine(w.behaviour_g[k][i], w.t[k]) for k, _ in w.targeted())


def group_loo(w, i):
    group, weight, a = w.column("group"), w.column("weight"), w.column("advantage")
    siblings = [j for j in range(len(group)) if group[j] == group[i]]
    others = [j for j in siblings if j != i]
    rewards = [w.column("reward")[j] for j in others]
    without = dict.fromkeys(others, 0.0)
    if len(others) >= 2 and len(set(rewards)) > 1:
        scale = stdev(rewards) + 1e-4 if w.evidence.config.scale_rewards == "group" else 1.0
        without = {j: (r - mean(rewards)) / scale for j, r in zip(others, rewards, strict=True)}
    pull = {j: sum(w.g[k][j] @ w.t[k] for k, _ in w.targeted()) for j in siblings}
    present = sum(weight[j] * a[j] * pull[j] for j in siblings)
    return present - sum(weight[j] * without[j] * pull[j] for j in others)


def gradient_norm(w, i):
    return sum(w.column("weight")[i] * abs(w.column("advantage")[i]) * math.sqrt(g[i] @ g[i]) for g in w.g)


FORMULAS = {
    "tracincp": tracincp,
    "gas": gas,
    "grad-cos": grad_cos,
    "trak": trak,
    "token-aligned": token_aligned,
    "group-loo": group_loo,
    "gradient-norm": gradient_norm,
    "nonzero-gradient": lambda w, i: float(gradient_norm(w, i) > 0),
    "fluency": lambda w, i: mean(float(c.logprob[i]) for c in w.evidence.checkpoints),
    "length": lambda w, i: w.column("length")[i],
    "step-index": lambda w, i: -w.column("step")[i],
    "reward": lambda w, i: w.column("reward")[i],
    "advantage": lambda w, i: w.column("advantage")[i],
    "string-match": lambda w, i: float(any(w.column("behaviour_mask")[i])),
    "string-match-advantage": lambda w, i: w.column("advantage")[i] * any(w.column("behaviour_mask")[i]),
}


def test_every_built_in_but_random_has_its_formula_here():
    assert set(FORMULAS) == set(registry.BUILTINS) - {"random"}


@pytest.mark.parametrize("at", [(0, 1), (0,)], ids=["two targets", "one target"])
@pytest.mark.parametrize("name", FORMULAS)
def test_scores_are_those_of_the_formula(name, at, tmp_path):
    w = make_world(tmp_path, at=at)
    expected = np.array([FORMULAS[name](w, i) for i in range(len(w.evidence.rollouts))])
    assert_close(score(name, w), expected, name)


@pytest.mark.parametrize("name", METHODS)
def test_the_step_score_of_a_method_is_its_signed_sum(name, world):
    rollouts, step = score(name, world), np.array(world.column("step"))
    assert_close(steps(name, world), [rollouts[step == s].sum() for s in range(STEPS)], name)


@pytest.mark.parametrize("k", [16, 39, 40, 41, 96])
def test_trak_is_the_same_in_rollouts_and_in_dimensions(k, tmp_path, monkeypatch):
    # Small blocks, so that the sum over blocks is tested too.
    monkeypatch.setattr("behaviortrace.estimators.trak.BLOCK", 7)
    w = make_world(tmp_path, k=k)
    assert_close(score("trak", w), [trak(w, i) for i in range(len(w.evidence.rollouts))], f"K = {k}")


def test_trak_factors_each_checkpoint_once_for_all_draws(world, monkeypatch):
    from behaviortrace.estimators import trak as module

    factored = []
    monkeypatch.setattr(module, "second_moment", lambda c, f=module.second_moment: factored.append(c) or f(c))
    estimator = registry.load("trak")
    draws = [make_target(world.evidence, (world.t + d).astype(np.float32), draw=d) for d in range(3)]
    shared = [rollout_scores(estimator, world.evidence, draw) for draw in draws]
    assert factored == list(world.evidence.checkpoints)
    for draw, scores in zip(draws, shared, strict=True):
        assert np.array_equal(scores, score("trak", world, draw))


@pytest.mark.parametrize("scale_rewards", ["group", "none"])
@pytest.mark.parametrize("sizes", [(5,) * 8, (5, 3, 1, 8, 2, 4, 9, 6)], ids=["equal", "ragged"])
def test_group_loo_is_the_loop_for_groups_of_any_size(scale_rewards, sizes, tmp_path):
    w = make_world(tmp_path, sizes=sizes, scale_rewards=scale_rewards)
    expected = [group_loo(w, i) for i in range(len(w.evidence.rollouts))]
    scores = score("group-loo", w)
    assert_close(scores, expected, f"{scale_rewards}, groups of {sizes}")
    equal = np.array(w.column("group")) == 1
    assert (scores[equal] == 0).all(), "a group of equal rewards is given the pull of another"


@pytest.mark.parametrize("scale_rewards", ["group", "none"])
def test_advantages_without_one_are_those_that_the_trainer_would_have_given(scale_rewards):
    rewards = np.array([0.1, 0.1, 1.0, 0.1, 2.0])
    rows, filled = members(np.zeros(5))
    without = advantages_without_one(rewards[rows], filled, scale_rewards)[0]
    for i in range(5):
        others = np.arange(5) != i
        np.testing.assert_allclose(without[i][others], advantages(rewards[others], 4, scale_rewards))
        assert without[i, i] == 0


@pytest.mark.parametrize("others", [[0.1] * 3, [1 / 3] * 6, [0.7]])
def test_siblings_with_nothing_to_learn_have_an_advantage_of_exactly_zero(others):
    rows, filled = members(np.zeros(len(others) + 1))
    without = advantages_without_one(np.array([5.0, *others])[rows], filled, "group")[0]
    assert (without[0] == 0).all(), f"rounding left {without[0]}"


def test_a_lone_dissenter_is_responsible_for_the_whole_update_of_its_group(tmp_path):
    w = make_world(tmp_path)
    w.evidence.rollouts.loc[:4, "reward"] = [1.0, 0.0, 0.0, 0.0, 0.0]
    w.evidence.rollouts.loc[:4, "advantage"] = advantages([1, 0, 0, 0, 0], 5, "group")
    weight, a = w.column("weight"), w.column("advantage")
    update = sum(weight[j] * a[j] * (w.g[k][j] @ w.t[k]) for k in (0, 1) for j in range(5))
    assert score("group-loo", w)[0] == pytest.approx(update, rel=1e-3)


def test_group_loo_refuses_a_reward_scaling_that_it_does_not_know(tmp_path):
    w = make_world(tmp_path)
    w.evidence = replace(w.evidence, config=replace(w.evidence.config, scale_rewards="batch"))
    with pytest.raises(
        BrokenEstimator, match=r"'group-loo': score\(\) raised ValueError: scale_rewards='batch'"
    ):
        score("group-loo", w)


def test_the_step_score_of_gradient_norm_is_the_length_of_the_step(world, monkeypatch):
    monkeypatch.setattr("behaviortrace.estimators.gradient_norm.ROWS", 7)  # blocks that cut through steps
    step, scale = np.array(world.column("step")), np.array(world.column("weight")) * world.column("advantage")
    expected = [
        sum(np.linalg.norm((scale[:, None] * g)[step == s].sum(axis=0)) for g in world.g)
        for s in range(STEPS)
    ]
    assert_close(steps("gradient-norm", world), expected, "gradient-norm of steps")


def test_a_step_has_a_gradient_where_any_of_its_rollouts_pulled(world):
    rollouts = world.evidence.rollouts
    rollouts.loc[rollouts["step"] == 2, "advantage"] = 0.0
    assert list(steps("nonzero-gradient", world)) == [1, 1, 0, 1]
    assert list(steps("gradient-norm", world) > 0) == [True, True, False, True]
    # Only rollouts whose gradients vanish: an advantage alone moves nothing.
    rollouts["advantage"] = 0.0
    rollouts.loc[[3, 17], "advantage"] = 1.0
    assert list(steps("nonzero-gradient", world)) == [0, 0, 0, 0]
    rollouts.loc[11, "advantage"] = -1e-6
    assert list(steps("nonzero-gradient", world)) == [0, 1, 0, 0]


def test_the_step_scores_of_the_other_controls(world):
    step, reward = np.array(world.column("step")), np.array(world.column("reward"))
    np.testing.assert_allclose(steps("reward", world), [reward[step == s].mean() for s in range(STEPS)])
    assert list(steps("step-index", world)) == [0, -1, -2, -3]


def test_random_is_the_run_s_own(tmp_path):
    one, same = make_world(tmp_path / "one"), make_world(tmp_path / "same")
    assert np.array_equal(score("random", one), score("random", same))
    assert np.array_equal(steps("random", one), steps("random", same))
    same.evidence.rollouts.loc[7, "completion"] = "something else"
    assert not np.isin(score("random", one), score("random", same)).any()
    assert not np.isin(steps("random", one), steps("random", same)).any()
    sums = np.bincount(one.column("step"), score("random", one))
    assert not np.array_equal(rankdata(sums), rankdata(steps("random", one)))
    assert not np.isin(steps("random", one), score("random", one)).any()


# ---- invariances


@pytest.mark.parametrize("name", FORMULAS)
def test_the_order_of_rollouts_does_not_matter(name, tmp_path):
    order = np.random.default_rng(0).permutation(STEPS * GROUPS * SIZE)
    straight, shuffled = make_world(tmp_path / "a"), make_world(tmp_path / "b", order=order)
    assert_close(score(name, shuffled), score(name, straight)[order], name)
    if "step" in trait(registry.load(name), "readouts"):
        assert_close(steps(name, shuffled), steps(name, straight), f"{name} of steps")


@pytest.mark.parametrize(
    ("name", "factor"), [(m, 1 if m in {"gas", "grad-cos", "token-aligned"} else 10) for m in METHODS]
)
def test_a_target_ten_times_as_long(name, factor, world):
    longer = make_target(world.evidence, 10 * world.t.astype(np.float32))
    assert_close(score(name, world, longer), factor * score(name, world), name)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_follows_the_target(name, world):
    opposite = make_target(world.evidence, -world.t.astype(np.float32))
    assert_close(score(name, world, opposite), -score(name, world), name)


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_reads_no_target(name, world):
    control = registry.load(name)
    assert not trait(control, "uses_target")
    assert np.array_equal(rollout_scores(control, world.evidence, None), score(name, world))
    if "step" in trait(control, "readouts"):
        assert np.array_equal(step_scores(control, world.evidence, None), steps(name, world))


@pytest.mark.parametrize("name", METHODS)
def test_a_draw_without_any_target_scores_all_rollouts_zero(name, world):
    scores = score(name, world, make_target(world.evidence, world.t, at=()))
    assert scores.shape == (len(world.evidence.rollouts),)
    assert not scores.any()


@pytest.mark.parametrize("name", registry.BUILTINS)
def test_scores_are_finite_where_no_gradient_is_left(name, world):
    for c in world.evidence.checkpoints:
        for file in c._folder.glob("*-norm.npy"):
            np.save(file, np.zeros_like(np.load(file)))
        for file in c._folder.glob("*-sketch.npy"):
            np.save(file, np.zeros_like(np.load(file)))
    scores = score(name, world)  # checked: finite
    if name in METHODS:
        assert not scores.any()


@pytest.mark.parametrize("name", registry.BUILTINS)
def test_every_built_in_scores_a_recorded_run(name, recorded, gradients):
    evidence = store.open_evidence(recorded, gradients)
    estimator, target = registry.load(name), store.open_target(evidence, gradients, 0)
    assert target.checkpoints, "the recorded run has no target, nothing is tested"
    readouts = trait(estimator, "readouts")
    read = {"rollout": rollout_scores, "step": step_scores}
    scores = [read[readout](estimator, evidence, target) for readout in readouts]
    # Of rollouts where there is a choice: every step may well have some gradient.
    assert len(np.unique(scores[-1])) > 1, f"{name} gave equal scores on a real run"


# ---- the contract


class Plugin:
    """Gives what it was told to."""

    name = "mine"

    def __init__(self, gives):
        self.gives = gives

    def score(self, evidence, target):
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives


def spoiled(value, dtype=float):
    scores = np.zeros(40, dtype)
    scores[[3, 5]] = value
    return scores


FAULTS = [
    (KeyError("gradient"), "raised KeyError: 'gradient'"),
    (np.zeros(39), r"gave shape \(39,\), expected \(40,\)"),
    (np.zeros((40, 1)), r"gave shape \(40, 1\), expected \(40,\)"),
    (0.0, r"gave shape \(\), expected \(40,\)"),
    (None, r"gave shape \(\), expected \(40,\)"),
    ([[0.0], [0.0, 1.0]], "raised ValueError"),
    (spoiled(np.nan), "gave 2 values of 40 that are NaN or infinite"),
    (spoiled(-np.inf), "gave 2 values of 40 that are NaN or infinite"),
    (spoiled(1j, complex), "gave dtype complex128, expected real numbers"),
    (spoiled("a", object), "gave dtype object, expected real numbers"),
    (["0.5"] * 40, "gave dtype <U3, expected real numbers"),
]


@pytest.mark.parametrize(("gives", "message"), FAULTS)
def test_a_fault_is_named(gives, message, world):
    with pytest.raises(BrokenEstimator, match=rf"estimator 'mine': score\(\) {message}"):
        rollout_scores(Plugin(gives), world.evidence, world.target)
    with pytest.raises(BrokenEstimator, match=rf"estimator 'mine': score\(\) {message}"):
        step_scores(Plugin(gives), world.evidence, world.target)  # the default is the sum of scores


@pytest.mark.parametrize(
    ("gives", "message"), [(np.zeros(40), r"shape \(40,\), expected \(4,\)"), (np.full(4, np.nan), "NaN")]
)
def test_a_fault_of_step_scores_is_named(gives, message, world):
    plugin = Plugin(np.zeros(40))
    plugin.step_scores = lambda evidence, target: gives
    with pytest.raises(BrokenEstimator, match=rf"estimator 'mine': step_scores\(\) gave .*{message}"):
        step_scores(plugin, world.evidence, world.target)


@pytest.mark.parametrize("dtype", [bool, np.int32, np.float16, np.float32])
def test_scores_of_any_real_dtype_are_taken_and_equal_ones_are_legal(dtype, world):
    scores = rollout_scores(Plugin(np.ones(40, dtype)), world.evidence, world.target)
    assert scores.dtype == np.float64
    assert (scores == 1).all()
    assert list(step_scores(Plugin([1] * 40), world.evidence, world.target)) == [10] * STEPS
