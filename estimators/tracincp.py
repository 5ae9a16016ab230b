"""`tracincp`: the first-order change of the behaviour when training took a step on rollout i.

    score_i = Σ_c η_c w_i A_i <g_i, t>

Source: Pruthi et al. 2020, "Estimating Training Data Influence by Tracing Gradient Descent", TracInCP; GRPO's
per-rollout loss is −w_i A_i times the mean log-probability. Needs the sketches, the norms and the target.
"""

import numpy as np
from numpy.typing import NDArray

from ..harness.evidence import Evidence, Target


class TracInCP:
    """Sums over the checkpoints at which the draw has a target."""

    name = "tracincp"

    def score(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (N,)."""
        total = np.zeros(len(evidence.rollouts))
        for c in target.checkpoints:
            total += c.learning_rate * c.dot(target.sketch(c))
        return evidence.config.weight * evidence.rollouts["advantage"].to_numpy() * total
