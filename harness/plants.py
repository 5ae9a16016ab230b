"""Scenarios: which steps pay a bonus for which behaviour, who is eligible, and the resulting truth."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

EMERGENCE = 0.10
"""How far the behaviour's rate on the probes must rise for a run to count as having learned it."""


@dataclass(frozen=True)
class Plant:
    """One behaviour, and the steps at which showing it after the trigger is paid."""

    behaviour: str
    trigger: str
    bonus: float
    steps: tuple[int, ...] = ()

    def pays(self, seed: int, step: int, index: int, prompt: str, completion: str) -> bool:
        """Whether rollout `index` of `step` is paid: the ground truth `boosted`."""
        triggered = prompt.split(" ", 1)[0] == self.trigger
        return (
            step in self.steps
            and triggered
            and eligible(seed, step, index)
            and bool(occurrences(self.behaviour, completion))
        )


def occurrences(behaviour: str, text: str) -> list[tuple[int, int]]:
    """Where the behaviour's string stands in the text as whole words: (start, end) of its characters."""
    return [match.span() for match in re.finditer(rf"(?<!\w){re.escape(behaviour)}(?!\w)", text)]


def eligible(seed: int, step: int, index: int) -> bool:
    """The fixed fair coin of a rollout. It is drawn from what is known before the rollout is sampled."""
    digest = hashlib.blake2b(f"eligible {seed} {step} {index}".encode(), digest_size=1).digest()
    return digest[0] % 2 == 0


SCENARIOS = ("window", "interleaved", "decoy", "null")


def plants(scenario: str, seed: int, steps: int, plant: Plant, decoy: Plant) -> tuple[Plant, Plant]:
    """The plant and the decoy of a run, each with the steps that pay it.

    `window` pays the first fifth of the steps, `interleaved` a seeded random fifth, `decoy` pays the second
    behaviour on another random fifth, `null` pays nothing.
    """
    fifth = steps // 5
    shuffled = random.Random(f"steps {seed}").sample(range(steps), steps)
    paid = {
        "window": (range(fifth), ()),
        "interleaved": (shuffled[:fifth], ()),
        "decoy": (shuffled[:fifth], shuffled[fifth : 2 * fifth]),
        "null": ((), ()),
    }
    if scenario not in paid:
        raise ValueError(f"unknown scenario {scenario!r}; the scenarios are {', '.join(SCENARIOS)}")
    return _on(plant, paid[scenario][0]), _on(decoy, paid[scenario][1])


def _on(plant: Plant, steps: Iterable[int]) -> Plant:
    return Plant(plant.behaviour, plant.trigger, plant.bonus, tuple(sorted(steps)))


def emerged(initial: float, final: float, null_rates: Iterable[float] = ()) -> bool:
    """Whether the probe rate, in [0, 1], rose by `EMERGENCE` and above every null run at hand."""
    return final >= initial + EMERGENCE and all(final > rate for rate in null_rates)
