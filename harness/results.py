"""The result record: what one check found, and the JSON file that holds all of them."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

SCHEMA = 2
"""Of the results file; a reader refuses another one. Not the package's version. 2 added the conditions."""

Verdict = Literal["pass", "fail", "inconclusive", "not-applicable", "error"]


@dataclass(frozen=True)
class Condition:
    """One condition of a check: a statistic against its bar."""

    statistic: str
    """Its name, the same in every session: a baseline is compared statistic by statistic."""
    verdict: Verdict
    """not-applicable: too little to count, it gates nothing."""
    value: float | None
    low: float | None
    high: float | None
    """The mean over seeds, and its 95 % interval where one can be formed."""
    bar: float
    at_most: bool
    """The bar is the largest value that passes, not one to exceed."""
    n: int
    """What the statistic rests on: within-group pairs (rollout) or ground-truth rollouts (step)."""
    per_seed: dict[str, float | None]


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
    """Of a rollout readout: behaviour, cause or planted. Of a step readout: boosted. Headroom: findable."""
    statistic: str | None = None
    """The deciding condition's, as are all fields down to per_seed."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    bar: float | None = None
    at_most: bool = False
    n: int | None = None
    per_seed: dict[str, float | None] = field(default_factory=dict)
    conditions: list[Condition] = field(default_factory=list)
    """All of them; the verdict is that of the worst."""
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
        "machine": {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count()},
    }


def write(path: Path, records: Sequence[Mapping[str, Any]], environment: Any, config: Any) -> None:
    """Write a results file.

    records: `Result.record()` of each cell. NaN becomes null.
    """
    content = {"schema": SCHEMA, "environment": environment, "config": config, "results": list(records)}
    text = json.dumps(_finite(content), indent=1, ensure_ascii=False, allow_nan=False)
    publish(path, text + "\n")


def publish(path: Path, text: str) -> None:
    """Write a text file in one piece: a reader sees the old one or the new one, never half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """A results file: schema, environment, config, and results as `Result` objects.

    Raises ResultsError for a file of another schema, and for one that is no results file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path} is not a results file: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
        raise ResultsError(f"{path} is not a results file: it has no schema number")
    if content["schema"] != SCHEMA:
        newer = content["schema"] > SCHEMA
        way_out = (
            f"newer than {SCHEMA}: update behaviortrace" if newer else f"older than {SCHEMA}: make it anew"
        )
        raise ResultsError(f"{path} has schema {content['schema']}, {way_out}")
    try:
        dict(content["environment"]), dict(content["config"])
        return content | {"results": [result(record) for record in content["results"]]}
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{path} is not a results file of schema {SCHEMA}: {error}") from error


def result(record: Mapping[str, Any]) -> Result:
    """The Result that a record was made from. Raises KeyError, TypeError or ValueError for anything else."""
    found = Result(**{**record, "conditions": [Condition(**item) for item in record["conditions"]]})
    for verdict in (found.verdict, *(condition.verdict for condition in found.conditions)):
        if verdict not in get_args(Verdict):
            raise ValueError(f"{verdict!r} is not one of the verdicts {', '.join(get_args(Verdict))}")
    return found


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _processor() -> str:
    """Its model where the system tells, as rounding depends on it; else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return " ".join([*models[:1], platform.machine()])


def properties(record: Mapping[str, Any]) -> list[tuple[str, str | float]]:
    """A record as flat pairs of a dotted name and a number or text, for pytest's user_properties."""
    return list(_leaves("behaviortrace", record))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str | float]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            key = item["statistic"] if isinstance(item, Mapping) and "statistic" in item else i
            yield from _leaves(f"{name}.{key}", item)
    elif value is not None:
        yield name, value


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
