"""Control `advantage`: A_i itself, without any gradient.

A bonus raises the advantage, so it stands beside every figure of the label `planted`. Needs the rollout
table. It has no meaning per step, where advantages sum to zero.
"""

import numpy as np
from numpy.typing import NDArray

from ..harness.evidence import Evidence, Target


class Advantage:
    """As the trainer computed it."""

    name = "advantage"
    control = True
    uses_target = False
    readouts = ("rollout",)

    def score(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (N,)."""
        return evidence.rollouts["advantage"].to_numpy(np.float64)
