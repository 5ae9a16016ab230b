"""Controls `gradient-norm` and `nonzero-gradient`: how hard a rollout pulled, in whatever direction.

    gradient-norm      rollout: Σ_c w_i |A_i| |g_i|        step: Σ_c |Σ_{i in step} w_i A_i g_i|
    nonzero-gradient   1 where that is not zero, for a step where any of its rollouts is not zero

Norms are exact and before clipping. That of a step's sum is read off its sketch, with a relative error of
1/sqrt(2K), 1 % at K = 4,096. A method that can't beat them finds updates that were large, not those that
taught the behaviour. They need the norms and, for step scores, the sketches.
"""

import numpy as np
from numpy.typing import NDArray

from ..harness.evidence import Checkpoint, Evidence, Target

ROWS = 512
"""Rows of a sketch in float32 at once: 8 MB at K = 4,096."""

Floats = NDArray[np.float64]


class GradientNorm:
    """Sums over all checkpoints."""

    name = "gradient-norm"
    control = True
    uses_target = False

    def score(self, evidence: Evidence, target: Target) -> Floats:
        """Scores, (N,), not negative."""
        return np.abs(coefficients(evidence)) * sum(c.norm().astype(np.float64) for c in evidence.checkpoints)

    def step_scores(self, evidence: Evidence, target: Target) -> Floats:
        """Scores, (S,), not negative."""
        total = np.zeros(len(evidence.config.learning_rates))
        for c in evidence.checkpoints:
            total += np.linalg.norm(step_gradients(evidence, c), axis=1)
        return total


class NonzeroGradient:
    """Looks at all checkpoints."""

    name = "nonzero-gradient"
    control = True
    uses_target = False

    def score(self, evidence: Evidence, target: Target) -> Floats:
        """Scores, (N,), 0 or 1."""
        return (GradientNorm().score(evidence, target) > 0).astype(np.float64)

    def step_scores(self, evidence: Evidence, target: Target) -> Floats:
        """Scores, (S,), 0 or 1. Counted, because gradients that cancel leave rounding noise in their sum."""
        steps = len(evidence.config.learning_rates)
        pulled = np.bincount(evidence.rollouts["step"].to_numpy(), self.score(evidence, target), steps)
        return (pulled > 0).astype(np.float64)


def coefficients(evidence: Evidence) -> Floats:
    """w_i A_i, (N,)."""
    return evidence.config.weight * evidence.rollouts["advantage"].to_numpy()


def step_gradients(evidence: Evidence, c: Checkpoint) -> Floats:
    """Sketches of Σ_{i in step} w_i A_i g_i, (S, K)."""
    sketch, step = c.sketch(), evidence.rollouts["step"].to_numpy()
    scale = coefficients(evidence) * c.norm()
    total = np.zeros((len(evidence.config.learning_rates), sketch.shape[1]))
    for i in range(0, len(sketch), ROWS):
        rows = slice(i, i + ROWS)
        present, place = np.unique(step[rows], return_inverse=True)
        share = np.zeros((len(present), len(place)))
        share[place, np.arange(len(place))] = scale[rows]
        total[present] += share @ sketch[rows].astype(np.float64)
    return total
