"""Control `reward`: the total reward that the trainer saw; for a step the mean of its rollouts.

It holds the bonus, so it stands beside every figure of the label `planted`. Needs the rollout table.
"""

import numpy as np
from numpy.typing import NDArray

from ..harness.evidence import Evidence, Target


class Reward:
    """In the reward function's own unit."""

    name = "reward"
    control = True
    uses_target = False

    def score(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (N,)."""
        return evidence.rollouts["reward"].to_numpy(np.float64)

    def step_scores(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (S,)."""
        step, steps = evidence.rollouts["step"].to_numpy(), len(evidence.config.learning_rates)
        return np.bincount(step, self.score(evidence, target), steps) / np.bincount(step, minlength=steps)
