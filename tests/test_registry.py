"""Names, built-ins and entry points: real distributions on the path, most of them broken in one way."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

from behaviortrace import estimators
from behaviortrace.harness import registry
from behaviortrace.harness.estimator import (
    BrokenEstimator,
    DuplicateEstimator,
    Estimator,
    UnknownEstimator,
    trait,
)

GOOD = """
class Mine:
    name = "mine"
    def score(self, evidence, target):
        return [0.0] * len(evidence.rollouts)
instance = Mine()
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution on the path: its module's source, and entry points as name = object."""
    monkeypatch.syspath_prepend(tmp_path)
    modules = []

    def install(distribution, source, **points):
        module = f"{distribution}_of_{tmp_path.name}".replace("-", "_")
        modules.append(module)
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{distribution}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
        lines = [f"{name.replace('_', '-')} = {module}:{value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{registry.GROUP}]", *lines]))
        importlib.invalidate_caches()

    yield install
    for module in modules:
        sys.modules.pop(module, None)


# ---- built-ins


@pytest.mark.parametrize("name", registry.BUILTINS)
def test_built_ins_load_and_keep_the_contract(name):
    estimator = registry.load(name)
    assert isinstance(estimator, Estimator)
    assert estimator.name == name
    assert registry.is_control(name) == trait(estimator, "control")


def test_every_class_of_the_estimators_folder_has_its_line():
    found = set()
    for module in pkgutil.iter_modules(estimators.__path__):
        contents = vars(importlib.import_module(f"{estimators.__name__}.{module.name}"))
        found |= {f"{module.name}:{key}" for key, value in contents.items() if hasattr(value, "score")}
    assert found == set(registry.BUILTINS.values())


def test_methods_come_before_controls():
    control = [registry.is_control(name) for name in registry.BUILTINS]
    assert control == sorted(control)
    assert (control.count(False), control.count(True)) == (6, 10)


def test_the_registry_imports_nothing_heavy():
    code = (
        "import sys; from behaviortrace.harness import registry; registry.resolve('gas,random')\n"
        "print([m for m in ('numpy', 'scipy', 'pandas', 'torch', 'behaviortrace.estimators.gas')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- names


def test_a_list_of_names_is_split_stripped_and_freed_of_repeats():
    assert registry.resolve(" gas, tracincp,gas,") == ["gas", "tracincp"]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("gaz", "gas"), ("GAS", "gas"), ("gradient_norm", "gradient-norm"), ("tracin", "tracincp")],
)
def test_an_unknown_name_gets_the_nearest_and_all_valid_ones(asked, meant):
    with pytest.raises(
        UnknownEstimator, match=rf"unknown estimator '{asked}': did you mean {meant}\?"
    ) as error:
        registry.resolve(f"trak,{asked}")
    assert ", ".join(registry.names()) in str(error.value)
    with pytest.raises(UnknownEstimator, match=rf"did you mean {meant}\?"):
        registry.load(asked)
    assert not registry.is_control(asked)


@pytest.mark.parametrize("asked", ["", " , "])
def test_an_empty_list_is_refused(asked):
    with pytest.raises(UnknownEstimator, match="no estimator is named"):
        registry.resolve(asked)


def test_a_name_like_no_other_gets_no_guess():
    with pytest.raises(
        UnknownEstimator, match=r"unknown estimator 'zzzzz'\. The estimators are tracincp, gas"
    ):
        registry.resolve("zzzzz")


# ---- plugins


@pytest.mark.parametrize("value", ["Mine", "instance"])
def test_a_plugin_stands_behind_the_built_ins(value, install):
    install("zoo", GOOD, mine=value, another_one="Mine")
    assert registry.names() == [*registry.BUILTINS, "another-one", "mine"]
    assert registry.resolve("mine,gas") == ["mine", "gas"]
    estimator = registry.load("mine")
    assert isinstance(estimator, Estimator)
    assert (registry.load("mine") is estimator) == (value == "instance")
    assert not registry.is_control("mine")


def test_a_plugin_may_be_a_control_and_is_not_instantiated_to_learn_that(install):
    source = GOOD.replace('name = "mine"', 'name = "mine"\n    control = True')
    heavy = "    def __init__(self): raise MemoryError\n"
    install("zoo", source.replace("instance = Mine()", "") + heavy, mine="Mine")
    assert registry.is_control("mine")
    with pytest.raises(BrokenEstimator, match="could not be instantiated: MemoryError"):
        registry.load("mine")


BROKEN = {
    "missing import": (
        "import no_such_module",
        "could not be imported: ModuleNotFoundError: No module named",
    ),
    "missing object": ("Other = 1", "could not be imported: AttributeError: .*Mine"),
    "syntax": ("class", "could not be imported: SyntaxError"),
    "import raises": ("1 / 0", "could not be imported: ZeroDivisionError: division by zero"),
    "constructor": (
        "class Mine:\n    def __init__(self, model): pass",
        "could not be instantiated: TypeError: .*'model'",
    ),
    "no score": ("class Mine:\n    name = 'mine'", r"has no method score\(evidence, target\)"),
    "a function": ("def Mine(evidence, target): pass", r"has no method score\(evidence, target\)"),
    "no name": (GOOD.replace('name = "mine"', ""), "has name = None, expected 'mine'"),
    "other name": (GOOD.replace('"mine"', '"yours"'), "has name = 'yours', expected 'mine'"),
    "readout misspelt": (
        GOOD.replace('name = "mine"', 'name = "mine"; readouts = ("rollouts",)'),
        r"has readouts = \('rollouts',\), expected one or both of",
    ),
    "readouts a string": (
        GOOD.replace('name = "mine"', 'name = "mine"; readouts = "rollout"'),
        "has readouts = 'rollout', expected one or both of",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_plugin_is_named_with_the_cause_and_hurts_nobody_else(fault, install):
    source, message = BROKEN[fault]
    install("rusty", source, mine="Mine")
    install("shiny", GOOD.replace('"mine"', '"good"'), good="Mine")
    assert registry.resolve("mine,good,gas") == ["mine", "good", "gas"]
    assert not registry.is_control("mine")
    with pytest.raises(
        BrokenEstimator, match=rf"estimator 'mine' \(rusty_.*:Mine of rusty 1.5\) .*{message}"
    ):
        registry.load("mine")
    assert [registry.load(name).name for name in ("good", "gas")] == ["good", "gas"]


def test_a_name_of_two_distributions_fails_alone_and_names_both(install):
    install("first", GOOD, mine="Mine")
    install("second", GOOD.replace('"mine"', '"good"'), mine="Mine", good="Mine")
    assert registry.names()[-2:] == ["good", "mine"]
    with pytest.raises(DuplicateEstimator, match=r"'mine' is claimed by first 1\.5 and by second 1\.5"):
        registry.load("mine")
    assert not registry.is_control("mine")
    assert registry.load("good").name == "good"


def test_a_plugin_can_not_take_the_name_of_a_built_in(install):
    install("thief", GOOD.replace('"mine"', '"gas"'), gas="Mine")
    assert registry.names() == list(registry.BUILTINS)
    with pytest.raises(
        DuplicateEstimator, match=r"'gas' is claimed by behaviortrace itself and by thief 1\.5"
    ):
        registry.load("gas")
    assert registry.load("tracincp").name == "tracincp"
