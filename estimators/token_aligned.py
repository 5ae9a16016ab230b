"""`token-aligned`: compares only the gradient of the behaviour's own tokens with the target.

    score_i = Σ_c A_i cos(g_i over the behaviour's tokens, t);  0 without such tokens

Source: the paper's positive lead (arXiv 2610.10422). It all but reads the label `planted` off, as
`string-match-advantage` does: compare the two. Needs the sketches of the scope `behaviour` and the target.
"""

import numpy as np
from numpy.typing import NDArray

from ..harness.evidence import Evidence, Target


class TokenAligned:
    """Sums over the checkpoints at which the draw has a target."""

    name = "token-aligned"

    def score(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (N,)."""
        total = np.zeros(len(evidence.rollouts))
        for c in target.checkpoints:
            total += c.cosine(target, "behaviour")
        return evidence.rollouts["advantage"].to_numpy() * total
