"""`trak`: TracIn with the rollouts' own second moments divided out.

    score_i = A_i · mean_c [(ΦΦᵀ + λI)⁻¹ Φ t]_i,   Φ the (N, K) sketches of the g_i,   λ = 1e-3 · tr(ΦΦᵀ)/N

Source: Park et al. 2023, "TRAK: Attributing Model Behavior at Scale"; with f = mean log π its weight Q is
A_i. Solved in the smaller of N × N and K × K, by (ΦΦᵀ + λI)⁻¹ Φ = Φ (ΦᵀΦ + λI)⁻¹. Needs the sketches, the
norms, the target, and memory for one factor of float64 per checkpoint (134 MB at K = 4,096), kept for the
next draws; it takes 4 s on one core at N = 7,680, a further draw 0.05 s.
"""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.blas import dsyrk

from ..harness.evidence import Checkpoint, Evidence, Target

DAMPING = 1e-3
"""λ over the mean squared norm of the sketches."""

BLOCK = 1024
"""Rows, or columns, of Φ in float64 at once: 32 MB at K = 4,096."""

Floats = NDArray[np.float64]


class TRAK:
    """Averages over the checkpoints at which the draw has a target."""

    name = "trak"

    def __init__(self) -> None:
        self._factors: WeakKeyDictionary[Checkpoint, Any] = WeakKeyDictionary()

    def score(self, evidence: Evidence, target: Target) -> Floats:
        """Scores, (N,)."""
        total = np.zeros(len(evidence.rollouts))
        for c in target.checkpoints:
            total += self._preconditioned(c, target.sketch(c))
        return evidence.rollouts["advantage"].to_numpy() * total / max(len(target.checkpoints), 1)

    def _preconditioned(self, c: Checkpoint, t: NDArray[Any]) -> Floats:
        """[(ΦΦᵀ + λI)⁻¹ Φ t], (N,)."""
        if not c.norm().any():
            return np.zeros(len(c.norm()))
        if c not in self._factors:
            gram = second_moment(c)
            n = len(c.norm())
            gram[np.diag_indices_from(gram)] += DAMPING * np.trace(gram) / n
            self._factors[c] = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
        by_rollout = len(self._factors[c][0]) == len(c.norm())
        if by_rollout:
            return np.asarray(cho_solve(self._factors[c], c.dot(t)))
        return c.dot(cho_solve(self._factors[c], t)).astype(np.float64)


def second_moment(c: Checkpoint) -> Floats:
    """The lower triangle of ΦΦᵀ (N, N) where N ≤ K, else of ΦᵀΦ (K, K).

    In float64: the damped matrix has a condition number up to N/1e-3, and float32 would lose the small end.
    """
    sketch, norm = c.sketch(), c.norm().astype(np.float64)[:, None]
    n, k = sketch.shape
    gram = np.zeros((min(n, k),) * 2, order="F")
    for i in range(0, max(n, k), BLOCK):
        block = norm * sketch[:, i : i + BLOCK] if n <= k else (norm[i : i + BLOCK] * sketch[i : i + BLOCK]).T
        # Half the work of a product: 2.4 s for 3.3 s at N = 7,680, K = 4,096.
        gram = dsyrk(1.0, block, beta=1.0, c=gram, lower=1, overwrite_c=1)
    return gram
