"""What a benchmark session was asked for: the command line, checked, in one record.

Nothing here imports numpy or torch.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from . import registry
from .baseline import Baseline
from .estimator import EstimatorError
from .plants import SCENARIOS
from .profiles import PROFILES, Profile
from .results import ResultsError


class SettingsError(ValueError):
    """An option has a value that makes no sense; one sentence says which values do."""


@dataclass(frozen=True)
class Settings:
    """One session's choices."""

    estimators: tuple[str, ...]
    profile: Profile
    scenarios: tuple[str, ...]
    seeds: tuple[int, ...]
    draws: int
    cache: Path
    results: Path | None
    leaderboard: Path | None
    baseline: Baseline | None

    @property
    def title(self) -> str:
        """For a heading."""
        seeds = ", ".join(map(str, self.seeds))
        return f"profile {self.profile.name}, seeds {seeds}, {self.draws} target draws"

    @property
    def config(self) -> dict[str, Any]:
        """For the results file, as plain types; without folders, which are the machine's."""
        return {
            "estimators": self.estimators,
            "plugins": {name: origin for name in self.estimators if (origin := registry.origin(name))},
            "scenarios": self.scenarios,
            "seeds": self.seeds,
            "draws": self.draws,
            "profile": asdict(self.profile),
        }


def parse(
    *,
    estimator: str | None = None,
    profile: str = "tiny",
    scenario: str = "window,decoy",
    seeds: str = "0,1,2",
    draws: str = "5",
    cache: str | None = None,
    results: str | None = None,
    leaderboard: str | None = None,
    baseline: str | None = None,
) -> Settings:
    """Settings from the options' text; None takes the default. Raises SettingsError."""
    try:
        estimators = registry.names() if estimator is None else registry.resolve(estimator)
    except EstimatorError as error:
        raise SettingsError(f"--estimator: {error}") from error
    files = {"--bt-results": results, "--bt-leaderboard": leaderboard}
    written = {option: _file(option, text) for option, text in files.items() if text is not None}
    if len(set(written.values())) < len(written):
        raise SettingsError(f"{' and '.join(written)} name the same file, {results}")
    settings = Settings(
        estimators=tuple(estimators),
        profile=PROFILES[_known("--bt-profile", profile.strip(), PROFILES)],
        scenarios=tuple(
            _known("--bt-scenario", name, SCENARIOS) for name in _split("--bt-scenario", scenario)
        ),
        seeds=_seeds(seeds),
        draws=_integer("--bt-draws", draws, least=1),
        cache=user_cache_path("behaviortrace")
        if cache is None
        else _writable("--bt-cache-dir", _path("--bt-cache-dir", cache)),
        results=written.get("--bt-results"),
        leaderboard=written.get("--bt-leaderboard"),
        baseline=None,
    )
    if baseline is None:
        return settings
    try:
        known = Baseline.load(_path("--bt-baseline", baseline), settings.config)
    except ResultsError as error:
        raise SettingsError(f"--bt-baseline: {error}") from error
    return replace(settings, baseline=known)


def _split(option: str, text: str) -> list[str]:
    names = list(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if not names:
        raise SettingsError(f"{option}: {text!r} names nothing")
    return names


def _known(option: str, name: str, valid: Iterable[str]) -> str:
    if name in (names := list(valid)):
        return name
    close = get_close_matches(name.lower(), names, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise SettingsError(f"{option}: {name!r} is not one of {', '.join(names)}.{hint}")


def _seeds(text: str) -> tuple[int, ...]:
    seeds: list[int] = []
    for part in _split("--bt-seeds", text):
        first, dash, last = part.partition("-")
        if dash and first:
            low, high = (_integer("--bt-seeds", bound, least=0) for bound in (first, last))
            if high < low:
                raise SettingsError(f"--bt-seeds: the range {part} is empty")
            seeds += range(low, high + 1)
        else:
            seeds.append(_integer("--bt-seeds", part, least=0))
    return tuple(dict.fromkeys(seeds))


def _integer(option: str, text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        example = "such as 0,1,2 or 0-2" if option == "--bt-seeds" else "such as 5"
        raise SettingsError(f"{option}: {text!r} is not an integer of at least {least}, {example}")
    return value


def _file(option: str, text: str) -> Path:
    """A file that can be written; it need not exist."""
    file = _path(option, text)
    try:
        if file.is_dir():
            raise SettingsError(f"{option}: {text} is a folder, a file is needed")
        if not file.parent.is_dir():
            raise SettingsError(f"{option}: the folder of {text} does not exist")
    except OSError as error:  # such as a name that is too long
        raise _unwritable(option, file, error) from error
    _writable(option, file.parent)
    return file


def _path(option: str, text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:  # the user of ~user is not known
        raise SettingsError(f"{option}: {text}: {error}") from error


def _writable(option: str, folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unwritable(option, folder, error) from error
    return folder


def _unwritable(option: str, path: Path, error: OSError) -> SettingsError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    return SettingsError(f"{option}: {path} can't be written to: {reason}")


def cells(settings: Settings, readouts: Sequence[str]) -> list[tuple[str, str, str]]:
    """(estimator, scenario, readout) of everything that a check with these readouts is asked about."""
    return [
        (estimator, scenario, readout)
        for estimator in settings.estimators
        for scenario in settings.scenarios
        for readout in readouts
    ]
