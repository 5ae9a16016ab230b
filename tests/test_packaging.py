"""What is installed is what is here."""

import importlib
import pkgutil
import tomllib
from pathlib import Path

import pytest

import behaviortrace
from behaviortrace.harness import registry

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "estimators", "fixtures", "harness")


def test_every_folder_with_code_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    with_code = {path.parent.relative_to(ROOT) for path in ROOT.glob("*/**/__init__.py")}
    inside = {folder for folder in with_code if folder.parts[0] in FOLDERS}
    names = {".".join(("behaviortrace", *folder.parts)) for folder in inside}
    assert set(project["tool"]["setuptools"]["packages"]) == names | {"behaviortrace"}


def test_this_checkout_is_the_package_under_test():
    assert [Path(path).resolve() for path in behaviortrace.__path__] == [ROOT.resolve()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_can_be_imported(folder):
    package = importlib.import_module(f"behaviortrace.{folder}")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "conftest":
            importlib.import_module(f"behaviortrace.{folder}.{module.name}")


def test_every_estimator_module_is_registered():
    modules = {path.stem for path in (ROOT / "estimators").glob("*.py")} - {"__init__"}
    assert {place.split(":")[0] for place in registry.BUILTINS.values()} == modules


def test_every_check_has_its_file():
    from behaviortrace.harness.checklist import CHECKS

    files = {path.stem for path in (ROOT / "benchmarks").glob("test_*.py")}
    assert files == {f"test_{check.replace('-', '_')}" for check in CHECKS}
    for check in CHECKS:
        text = (ROOT / "benchmarks" / f"test_{check.replace('-', '_')}.py").read_text()
        assert f'@pytest.mark.behaviortrace("{check}")' in text


def test_the_exact_versions_satisfy_the_bounds():
    from packaging.requirements import Requirement

    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in [*project["dependencies"], *project["optional-dependencies"]["test"]]:
        requirement = Requirement(text)
        assert pins[requirement.name] in requirement.specifier, text
