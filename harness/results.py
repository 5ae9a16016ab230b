"""The result record: what one check found, and the JSON file that holds all of them."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
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


class ResultsError(ValueError):
    """A results file can't be read; one sentence says why."""


def environment() -> dict[str, Any]:
    """What the results were made with: library versions, the checkout's commit, the machine."""
    libraries = ("behaviortrace", "torch", "transformers", "trl", "numpy", "scipy", "pandas")
    return {
        "python": platform.python_version(),
        "versions": {library: version(library) for library in libraries},
        "commit": _commit(),
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
    }


def write(path: Path, records: Sequence[Mapping[str, Any]], environment: Any, config: Any) -> None:
    """Write a results file; a reader never sees half of one.

    records: `Result.record()` of each cell. NaN becomes null.
    """
    content = {"schema": SCHEMA, "environment": environment, "config": config, "results": list(records)}
    text = json.dumps(_finite(content), indent=1, ensure_ascii=False, allow_nan=False)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """A results file: schema, environment, config, and results as `Result` objects.

    Raises ResultsError for a file of a newer schema, and for one that is no results file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path} is not a results file: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
        raise ResultsError(f"{path} is not a results file: it has no schema number")
    if content["schema"] > SCHEMA:
        raise ResultsError(
            f"{path} has schema {content['schema']}, newer than {SCHEMA}: update behaviortrace"
        )
    try:
        return content | {"results": [Result(**record) for record in content["results"]]}
    except (KeyError, TypeError) as error:
        raise ResultsError(f"{path} is not a results file of schema {SCHEMA}: {error}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _commit() -> str | None:
    """Of the checkout that this package runs from, `+` where it has changes; None if there is none."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--match=", "--dirty=+"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()
