"""The checks' fixtures."""

from behaviortrace.fixtures import cell, trials, verdict

__all__ = ["cell", "trials", "verdict"]
