"""`grad-cos`: how alike rollout and behaviour are to the last checkpoint, whatever training made of them.

    score_i = cos(g_i, t) at the last checkpoint at which the draw has a target

Source: Charpiat et al. 2019, "Input Similarity from the Neural Network Perspective". It reads neither the
advantage nor the learning rate. Needs the sketches of one checkpoint and the target.
"""

import numpy as np
from numpy.typing import NDArray

from ..harness.evidence import Evidence, Target


class GradCos:
    """Reads one checkpoint."""

    name = "grad-cos"

    def score(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (N,), in [-1, 1] up to the sketch's error; 0 where the gradient is zero."""
        if not target.checkpoints:
            return np.zeros(len(evidence.rollouts))
        return target.checkpoints[-1].cosine(target).astype(np.float64)
