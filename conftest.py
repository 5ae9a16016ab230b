"""Says what to do when the plugin that the checks need is not installed."""

import pytest


def pytest_addoption(pluginmanager):
    """Run early, before pytest complains about options that it doesn't know."""
    if not pluginmanager.hasplugin("behaviortrace"):
        raise pytest.UsageError("the behaviortrace plugin is not installed here: run pip install -e . first")
