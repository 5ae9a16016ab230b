"""The pytest plugin: hooks only.

It loads in every pytest run of its environment: it imports nothing heavy, and does nothing until one of its
options is given or one of its checks is collected.
"""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .settings import Settings

MARKER = "behaviortrace"
RECORD = pytest.StashKey[dict[str, Any]]()
"""Of a test: the record of its result."""
CHANGE = pytest.StashKey[str]()
"""Of a test that got worse than the baseline: in what."""
ATTRIBUTE = "behaviortrace_record"
"""Of a test's report: the record again. Like user_properties it survives pytest-xdist."""

OPTIONS = {
    "estimator": ("--estimator", "NAME[,NAME]", "estimators to judge (default: all)"),
    "profile": ("--bt-profile", "NAME", "tiny (default), or smoke: seconds, and its verdicts mean nothing"),
    "scenario": ("--bt-scenario", "NAME[,NAME]", "scenarios (default: window,decoy)"),
    "seeds": ("--bt-seeds", "LIST", "training seeds, as 0,1,2 or 0-2 (default: 0,1,2)"),
    "draws": ("--bt-draws", "N", "target draws per run (default: 5)"),
    "cache": (
        "--bt-cache-dir",
        "DIR",
        "where runs and gradients are kept (default: user's cache folder)",
    ),
    "results": ("--bt-results", "FILE", "write the results to FILE, as JSON"),
    "leaderboard": ("--bt-leaderboard", "FILE", "write the table with its intervals to FILE, as markdown"),
    "baseline": (
        "--bt-baseline",
        "FILE",
        "fail only what is worse than in FILE, results of an earlier session; its failures are expected",
    ),
}
UNPREFIXED = "estimator"
"""The option whose name another project's conftest.py may want as well."""
_SETTINGS = pytest.StashKey["Settings"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options, in a group of their own; `--estimator` follows."""
    for name in OPTIONS:
        if name != UNPREFIXED:
            _add(name, parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None]:
    """Add `--estimator` once conftest.py files had their turn: where one of them has it, it is theirs."""
    yield
    try:
        _add(UNPREFIXED, parser)
    except ArgumentError:
        return


def _add(name: str, parser: pytest.Parser) -> None:
    option, metavar, text = OPTIONS[name]
    group = parser.getgroup("behaviortrace", "behaviortrace: is this attribution method any good?")
    group.addoption(option, dest=f"behaviortrace_{name}", metavar=metavar, default=None, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; check our options if one was given."""
    config.addinivalue_line("markers", f"{MARKER}(check): one item of behaviortrace's checklist, by its id")
    config.pluginmanager.register(Verdicts(config), "behaviortrace-verdicts")
    if _given(config):
        settings_of(config)


def _given(config: pytest.Config) -> dict[str, str]:
    values = {name: config.getoption(f"behaviortrace_{name}", None) for name in OPTIONS}
    return {name: value for name, value in values.items() if value is not None}


def settings_of(config: pytest.Config) -> Settings:
    """The session's settings. Raises UsageError, which ends pytest with exit code 4."""
    if _SETTINGS not in config.stash:
        from .settings import SettingsError, parse

        try:
            config.stash[_SETTINGS] = parse(**_given(config))
        except SettingsError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[_SETTINGS]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test of a check per estimator, scenario and readout."""
    marker = metafunc.definition.get_closest_marker(MARKER)
    if marker is None:
        return
    from .checklist import CHECKS
    from .settings import cells

    check = CHECKS.get(marker.args[0]) if len(marker.args) == 1 else None
    if check is None:
        raise pytest.Collector.CollectError(
            f"{metafunc.definition.nodeid}: marker {MARKER} needs the id of one check, of {', '.join(CHECKS)}"
        )
    params = [
        pytest.param((check.id, *cell), id="-".join(cell))
        for cell in cells(settings_of(metafunc.config), check.readouts)
    ]
    metafunc.parametrize("cell", params, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A verdict is one sentence: no traceback through our own assertion."""
    report = yield
    record = item.stash.get(RECORD, None)
    if record is not None:
        setattr(report, ATTRIBUTE, record)
        verdict = call.when == "call" and call.excinfo and call.excinfo.errisinstance(AssertionError)
        if report.failed and verdict:
            change = item.stash.get(CHANGE, None)
            report.longrepr = record["statement"] + (f" ({change})" if change else "")
    return report


class Verdicts:
    """Collects the result records of the session, prints the table, writes the files."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.records: dict[str, dict[str, Any]] = {}

    @property
    def silent(self) -> bool:
        """Nothing was judged, or this is a worker of pytest-xdist, whose records the controller gets."""
        return not self.records or hasattr(self.config, "workerinput")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the record off a test's report."""
        if hasattr(report, ATTRIBUTE):
            self.records[report.nodeid] = getattr(report, ATTRIBUTE)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None]:
        """Print the table below everything else: it is the report."""
        yield
        if self.silent:
            return
        from . import baseline, registry, report, results

        settings, records = settings_of(self.config), list(self.records.values())
        lines = [report.table(records, settings)]
        if settings.baseline is not None:
            judged, environment = [results.result(record) for record in records], results.environment()
            lines.append("")
            lines += baseline.summary(
                settings.baseline, judged, environment, settings.config, registry.names()
            )
        terminalreporter.section("behaviortrace")
        encoding = getattr(terminalreporter._tw._file, "encoding", None) or "ascii"
        terminalreporter.write_line(report.encodable("\n".join(lines), encoding))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> Generator[None]:
        """Write the files; last, so that a full disk does not cost the table."""
        yield
        if self.silent:
            return
        settings = settings_of(self.config)
        if settings.results is None and settings.leaderboard is None:
            return
        from . import leaderboard, results

        records, environment = list(self.records.values()), results.environment()
        try:
            if settings.results is not None:
                results.write(settings.results, records, environment, settings.config)
            if settings.leaderboard is not None:
                results.publish(settings.leaderboard, leaderboard.page(records, settings, environment))
        except OSError as error:
            pytest.exit(f"behaviortrace: the results were not written: {error}", returncode=2)
