"""In other people's projects: the checklist runs there, and the plugin takes nothing that is theirs."""

import os
import subprocess
import sys

import pytest


def run(*arguments, cwd):
    """Pytest in a process of its own: (exit code, output)."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_checklist_runs_from_any_folder(tmp_path):
    arguments = ("--pyargs", "behaviortrace.benchmarks", "--collect-only", "-q", "--estimator=gas")
    code, output = run(*arguments, f"--bt-cache-dir={tmp_path / 'cache'}", cwd=tmp_path)
    assert code == 0, output
    assert output.count("[gas-") == 2 * 7
    assert list((tmp_path / "cache").iterdir()) == []


TAKEN = """
def pytest_addoption(parser):
    parser.addoption("--estimator", default="none")
"""


def test_an_estimator_option_of_somebody_else_is_theirs(tmp_path):
    (tmp_path / "conftest.py").write_text(TAKEN)
    test = "def test_theirs(request): assert request.config.getoption('estimator') == 'ridge'"
    (tmp_path / "test_theirs.py").write_text(test)
    code, output = run("--estimator=ridge", cwd=tmp_path)
    assert code == 0, output
    assert "1 passed" in output


def test_our_options_are_listed_in_a_group_of_their_own(tmp_path):
    _, output = run("--help", cwd=tmp_path)
    group = output.split("\nbehaviortrace: ")[1].split("\n\n")[0]
    options = [line.split()[0].split("=")[0] for line in group.splitlines() if line.startswith("  --")]
    assert sorted(options) == [
        "--bt-baseline",
        "--bt-cache-dir",
        "--bt-draws",
        "--bt-leaderboard",
        "--bt-profile",
        "--bt-results",
        "--bt-scenario",
        "--bt-seeds",
        "--estimator",
    ]


@pytest.mark.parametrize("marker", ["behaviortrace", "behaviortrace('beats-nothing')"])
def test_a_marker_without_a_check_says_which_there_are(tmp_path, marker):
    (tmp_path / "test_marked.py").write_text(
        "import pytest\n"
        "from behaviortrace.fixtures import cell, trials, verdict\n"
        f"@pytest.mark.{marker}\n"
        "def test_marked(verdict): pass\n"
    )
    code, output = run(cwd=tmp_path)
    assert code == pytest.ExitCode.INTERRUPTED
    assert "test_marked: marker behaviortrace needs the id of one check, of beats-gradient-norm," in output
    assert "generate_tests" not in output  # no traceback


def test_a_session_without_our_checks_leaves_the_cache_folder_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "test_theirs.py").write_text("def test_theirs(): pass")
    code, output = run(cwd=tmp_path)
    assert code == 0, output
    assert not (tmp_path / "cache").exists()
