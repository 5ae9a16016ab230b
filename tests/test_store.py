"""Evidence read from disk against exact gradients computed anew."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch

from behaviortrace.harness import policy, store
from behaviortrace.harness.evidence import NoTarget
from behaviortrace.harness.sketch import Sketch

# An inner product of sketches of unit vectors has standard deviation 1/sqrt(K) at most, 0.022 at K = 2,048;
# the largest of some hundred stays below 4.5 of them.
SKETCH_ERROR = 0.10
HALF = 2e-3  # relative to a unit row: float16 keeps 11 bits


@pytest.fixture(scope="module")
def evidence(recorded, gradients):
    return store.open_evidence(recorded, gradients)


@pytest.fixture(scope="module")
def target(evidence, gradients):
    return store.open_target(evidence, gradients, 0)


def flat(gradient):
    return torch.cat([g.flatten() for g in gradient.values()])


@pytest.mark.parametrize("scope", ["completion", "behaviour"])
def test_norms_and_cosines_are_those_of_exact_gradients(evidence, target, scope):
    c = evidence.checkpoints[-1]
    exact = torch.stack([flat(g) for g in c.gradients(scope)])
    t = flat(target.gradient(c))
    norms = exact.norm(dim=1)
    np.testing.assert_allclose(c.norm(scope), norms, rtol=1e-4, atol=1e-9)
    assert target.norm(c) == pytest.approx(t.norm().item(), rel=1e-5)
    expected = exact @ t / (norms.clamp(min=1e-30) * t.norm())
    assert np.abs(c.cosine(target, scope) - expected.numpy()).max() < SKETCH_ERROR
    unit_dots = c.dot(target.sketch(c), scope) / np.maximum(c.norm(scope), 1e-30) / target.norm(c)
    np.testing.assert_allclose(unit_dots, c.cosine(target, scope), atol=1e-5)


@pytest.mark.parametrize("scope", ["completion", "behaviour"])
def test_sketches_are_those_of_exact_gradients(evidence, target, scope):
    c = evidence.checkpoints[0]
    sketch = Sketch.for_model(c.model(), len(target.sketch(c)), store.SKETCH_SEED)
    stored = c.sketch(scope) * c.norm(scope)[:, None]
    for i, gradient in enumerate(c.gradients(scope)):
        expected = sketch.dense(gradient).numpy()
        np.testing.assert_allclose(stored[i], expected, atol=HALF * max(c.norm(scope)[i], 1e-9))
        if i == 40:
            break
    np.testing.assert_allclose(target.sketch(c), sketch.dense(target.gradient(c)), rtol=1e-4, atol=1e-5)


def test_the_behaviour_scope_is_empty_where_the_behaviour_is_not_shown(evidence, recorded):
    shown = recorded.rollouts["behaviour_mask"].map(any).to_numpy()
    for c in evidence.checkpoints:
        assert ((c.norm("behaviour") > 0) == shown).all()
        assert shown.any()
        assert not c.sketch("behaviour")[~shown].any()


def test_fluency_is_the_mean_log_probability_of_the_completion(evidence, recorded):
    c = evidence.checkpoints[0]
    model, tokenizer = c.model(), policy.load(recorded.policy, recorded.weights(c.step))[1]
    for i in (0, 17, 143):
        row = recorded.rollouts.iloc[i]
        ids = torch.tensor([[*row["prompt_ids"], *row["completion_ids"]]])
        with torch.no_grad():
            logprobs = model(ids[:, :-1]).logits.log_softmax(-1).gather(2, ids[:, 1:, None])[0, :, 0]
        expected = logprobs[len(row["prompt_ids"]) - 1 :].mean().item()
        assert c.logprob[i] == pytest.approx(expected, abs=1e-5)
        assert tokenizer.decode(row["completion_ids"], skip_special_tokens=True) == row["completion"]


def test_evidence_has_no_labels(evidence, recorded):
    assert not set(recorded.labels.columns) & set(evidence.rollouts.columns)
    hidden = {"eligible", "boosted", "decoy_boosted", "bonus", "task_reward"}
    assert hidden <= set(recorded.labels.columns)


def test_the_learning_rate_is_that_of_the_last_step_before(evidence, recorded):
    rates = recorded.steps["learning_rate"]
    assert [c.learning_rate for c in evidence.checkpoints] == [rates[2], rates[5]]
    assert evidence.checkpoints[0].step == 3


def test_second_moments_are_the_optimiser_s(evidence):
    c = evidence.checkpoints[-1]
    moments = c.second_moment()
    assert {name: m.shape for name, m in moments.items()} == {
        name: p.shape for name, p in c.model().named_parameters()
    }
    assert all((m >= 0).all() for m in moments.values())
    assert max(m.max() for m in moments.values()) > 0


def test_draws_are_fresh_and_repeatable(recorded, gradients, evidence, target, smoke, tmp_path):
    other = store.open_target(evidence, gradients, 1)
    assert not other._responses["completion"].equals(target._responses["completion"])
    prompts = [policy.text(evidence_tokenizer(recorded), ids) for ids in target._responses["prompt_ids"][:64]]
    store.capture_target(recorded, tmp_path, smoke.sketch_dimensions, prompts, 1, seed=0)
    again = store.open_target(evidence, tmp_path, 1)
    pd.testing.assert_frame_equal(again._responses, other._responses)
    for c in evidence.checkpoints:
        assert np.array_equal(again.sketch(c), other.sketch(c))


def evidence_tokenizer(recorded):
    return policy.load(recorded.policy, recorded.weights(0))[1]


def test_a_checkpoint_without_the_behaviour_has_no_target(recorded, evidence, smoke, tmp_path, monkeypatch):
    monkeypatch.setitem(recorded.manifest["training"], "behaviour", "never said")
    store.capture_target(recorded, tmp_path, smoke.sketch_dimensions, ["largest of 1 2 3 ?"], 0, seed=0)
    target = store.open_target(evidence, tmp_path, 0)
    assert target.checkpoints == ()
    for read in (target.sketch, target.norm, target.gradient):
        with pytest.raises(NoTarget, match="draw 0 has no in-context target at step 3"):
            read(evidence.checkpoints[0])


def test_a_dot_product_is_computed_once(evidence, target, monkeypatch):
    c = evidence.checkpoints[0]
    opened = Counter()
    array = type(c)._array
    monkeypatch.setattr(type(c), "_array", lambda self, name: opened.update([name]) or array(self, name))
    vector = np.random.default_rng(0).normal(size=len(target.sketch(c)))
    first = c.dot(vector)
    assert opened["completion-sketch"] == 1
    assert np.array_equal(c.dot(vector), first)
    assert opened["completion-sketch"] == 1
    np.testing.assert_allclose(
        first, (c.sketch().astype(np.float64) @ vector) * c.norm(), rtol=1e-3, atol=1e-3 * c.norm().max()
    )
