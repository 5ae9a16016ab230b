"""Estimators by name: the built-in ones, and those that installed packages add by an entry point.

    [project.entry-points."behaviortrace.estimators"]
    mine = "package.module:MyEstimator"

A class is instantiated without arguments, an instance is used as it is. Nothing is imported before it is
asked for, so a broken plugin fails where its own name is loaded and nowhere else.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from .estimator import (
    READOUTS,
    BrokenEstimator,
    DuplicateEstimator,
    Estimator,
    EstimatorError,
    UnknownEstimator,
    trait,
)

GROUP = "behaviortrace.estimators"

BUILTINS = {
    "tracincp": "tracincp:TracInCP",
    "gas": "gas:GAS",
    "grad-cos": "grad_cos:GradCos",
    "trak": "trak:TRAK",
    "token-aligned": "token_aligned:TokenAligned",
    "group-loo": "group_loo:GroupLOO",
    # controls
    "gradient-norm": "gradient_norm:GradientNorm",
    "nonzero-gradient": "gradient_norm:NonzeroGradient",
    "fluency": "fluency:Fluency",
    "length": "length:Length",
    "step-index": "step_index:StepIndex",
    "reward": "reward:Reward",
    "advantage": "advantage:Advantage",
    "string-match": "string_match:StringMatch",
    "string-match-advantage": "string_match:StringMatchAdvantage",
    "random": "random_scores:RandomScores",
}
"""Module in `estimators/` and class, in the order of the table: methods, then controls."""


def names() -> list[str]:
    """All valid names: the built-in ones in the order of the table, then those of plugins, sorted."""
    return [*BUILTINS, *sorted({point.name for point in entry_points(group=GROUP)} - BUILTINS.keys())]


def resolve(text: str) -> list[str]:
    """The names in a list such as "gas,tracincp", each once, in the order given.

    Raises UnknownEstimator for a name that does not exist, with the valid ones, and for an empty list.
    """
    asked = list(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    valid = names()
    for name in asked:
        if name not in valid:
            raise _unknown(name, valid)
    if not asked:
        raise UnknownEstimator(f"no estimator is named; the estimators are {', '.join(valid)}")
    return asked


def load(name: str) -> Estimator:
    """A fresh instance of a named class, or the named instance.

    Raises:
        UnknownEstimator: nothing has this name.
        DuplicateEstimator: several distributions claim it.
        BrokenEstimator: it can't be imported or instantiated, or does not keep the contract.
    """
    point = _entry_point(name)
    estimator = _import(point)
    if isinstance(estimator, type):
        try:
            estimator = estimator()
        except Exception as error:  # whatever a plugin raises is its own cells' failure, with the cause
            raise _broken(point, f"could not be instantiated: {type(error).__name__}: {error}") from error
    if not callable(getattr(estimator, "score", None)):
        raise _broken(point, f"is {estimator!r}, which has no method score(evidence, target)")
    if getattr(estimator, "name", None) != name:
        raise _broken(point, f"has name = {getattr(estimator, 'name', None)!r}, expected {name!r}")
    readouts = trait(estimator, "readouts")
    if not isinstance(readouts, tuple | list) or not readouts or any(r not in READOUTS for r in readouts):
        raise _broken(point, f"has readouts = {readouts!r}, expected one or both of {READOUTS}")
    return estimator


def is_control(name: str) -> bool:
    """Whether the estimator is a control; False for one that is unknown or broken. Instantiates nothing."""
    try:
        return bool(trait(_import(_entry_point(name)), "control"))
    except EstimatorError:
        return False


def origin(name: str) -> str | None:
    """The distributions and versions that a plugin's estimator is from; None for a built-in one."""
    owners = sorted(_distribution(point) for point in entry_points(group=GROUP, name=name))
    return " and ".join(owners) or None


def _entry_point(name: str) -> EntryPoint:
    points = list(entry_points(group=GROUP, name=name))
    owners = sorted(_distribution(point) for point in points)
    if name in BUILTINS:
        package = (__package__ or "").rpartition(".")[0]
        points.append(EntryPoint(name, f"{package}.estimators.{BUILTINS[name]}", GROUP))
        owners.insert(0, "behaviortrace itself")
    if not points:
        raise _unknown(name, names())
    if len(points) > 1:
        raise DuplicateEstimator(
            f"estimator {name!r} is claimed by {' and by '.join(owners)}: rename or uninstall one of them"
        )
    return points[0]


def _import(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # whatever a plugin raises is its own cells' failure, with the cause
        raise _broken(point, f"could not be imported: {type(error).__name__}: {error}") from error


def _broken(point: EntryPoint, what: str) -> BrokenEstimator:
    return BrokenEstimator(f"estimator {point.name!r} ({point.value} of {_distribution(point)}) {what}")


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "behaviortrace"


def _unknown(name: str, valid: list[str]) -> UnknownEstimator:
    close = get_close_matches(name.lower(), valid, n=1)
    hint = f": did you mean {close[0]}?" if close else "."
    return UnknownEstimator(f"unknown estimator {name!r}{hint} The estimators are {', '.join(valid)}")
