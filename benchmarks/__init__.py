"""The checklist: one file per check, run by `pytest benchmarks/`."""
