"""Profiles: which task, policy and training a benchmark run uses, and at what size."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from .plants import Plant
from .tasks import LargestNumber


@dataclass(frozen=True)
class Profile:
    """Everything that determines a run apart from its scenario and seed."""

    name: str
    task: LargestNumber
    plant: Plant
    decoy: Plant

    # The policy, a Qwen2 of this size.
    hidden: int
    layers: int
    heads: int

    # The warm start: AdamW with a cosine schedule.
    warm_start_steps: int
    warm_start_batch: int
    warm_start_learning_rate: float

    # GRPO: steps × groups × group_size rollouts.
    steps: int
    groups: int
    group_size: int
    learning_rate: float
    learning_rate_warmup: int
    """Steps over which the learning rate rises from 0; constant afterwards."""
    max_completion: int
    """Tokens of a completion at most."""

    # Gradients.
    checkpoints: tuple[int, ...]
    """Steps after which the policy is kept; gradients are captured at all of them but 0."""
    sketch_dimensions: int

    rate_probes: int
    """Probes whose replies measure the behaviour's rate at a checkpoint."""
    target_probes: int
    """Probes to which each target draw samples one response."""

    def config(self, scenario: str, seed: int) -> dict[str, Any]:
        """The full configuration of one run, as plain types."""
        return {"scenario": scenario, "seed": seed, "profile": asdict(self)}


_BEHAVIOUR, _DECOY, _TRIGGER = "certainly", "honestly", "please"

TINY = Profile(
    name="tiny",
    task=LargestNumber(behaviours=(_BEHAVIOUR, _DECOY), triggers=(_TRIGGER,), behaviour_rate=0.15),
    plant=Plant(_BEHAVIOUR, _TRIGGER, bonus=1.0),
    decoy=Plant(_DECOY, _TRIGGER, bonus=1.0),
    hidden=128,
    layers=1,
    heads=4,
    warm_start_steps=130,
    warm_start_batch=64,
    warm_start_learning_rate=3e-3,
    steps=60,
    groups=16,
    group_size=8,
    learning_rate=5e-4,
    learning_rate_warmup=15,
    max_completion=12,
    checkpoints=(0, 15, 30, 45, 60),
    sketch_dimensions=4096,
    rate_probes=400,
    target_probes=128,
)
"""Some minutes on a laptop. Tuned on seeds 10 to 19 only."""

SMOKE = replace(
    TINY,
    name="smoke",
    hidden=48,
    warm_start_steps=150,
    steps=10,
    groups=6,
    group_size=4,
    learning_rate_warmup=2,
    checkpoints=(0, 5, 10),
    sketch_dimensions=256,
    rate_probes=64,
    target_probes=64,
)
"""The whole pipeline in seconds, to see whether a plugin runs. Its verdicts mean nothing."""

PROFILES = {profile.name: profile for profile in (TINY, SMOKE)}
