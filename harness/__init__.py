"""The machinery: runs, gradients, evidence, metrics, checks and the pytest plugin."""
