"""The result record: what one check found, and the JSON file that holds all of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SCHEMA = 1
"""Of the results file; a reader refuses a newer one. Not the package's version."""

Verdict = Literal["pass", "fail", "inconclusive", "not-applicable", "error"]


@dataclass(frozen=True)
class Result:
    """One cell: (check, estimator, scenario, readout), with the statistic that decided it."""

    check: str
    estimator: str
    scenario: str
    readout: str
    verdict: Verdict
    statement: str
    """One sentence with the numbers and intervals."""
    label: str | None = None
    """Of a rollout readout: behaviour, cause or planted. Of a step readout: boosted."""
    value: float | None = None
    """The gating statistic, mean over seeds; low and high are its 95 % interval, bar what it must exceed."""
    low: float | None = None
    high: float | None = None
    bar: float | None = None
    n: int | None = None
    """What the statistic rests on: within-group pairs (rollout) or ground-truth rollouts (step)."""
    per_seed: dict[str, float] = field(default_factory=dict)
    """The gating statistic of each seed."""
    detail: dict[str, Any] = field(default_factory=dict)
    """Further numbers by name, each a float or a list of floats."""
    seconds: float | None = None

    @property
    def passed(self) -> bool:
        """Whether what the check asks was established."""
        return self.verdict == "pass"

    def record(self) -> dict[str, Any]:
        """As plain types, for JSON and for pytest's user_properties."""
        return asdict(self)
