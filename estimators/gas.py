"""`gas`: gradient aggregated similarity, TracInCP without the sizes of gradients and advantages.

    score_i = Σ_c η_c sign(A_i) cos(g_i, t)

Both are normalised at each checkpoint. Source: Hammoudeh & Lowd 2022, "Identifying a Training-Set Attack's
Target Using Renormalized Influence Estimation". Needs the sketches, the norms and the target.
"""

import numpy as np
from numpy.typing import NDArray

from ..harness.evidence import Evidence, Target


class GAS:
    """Sums over the checkpoints at which the draw has a target."""

    name = "gas"

    def score(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (N,), in ±Σ_c η_c up to the sketch's error; 0 where the gradient is zero."""
        total = np.zeros(len(evidence.rollouts))
        for c in target.checkpoints:
            total += c.learning_rate * c.cosine(target)
        return np.sign(evidence.rollouts["advantage"].to_numpy()) * total
