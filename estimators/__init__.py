"""The built-in estimators and controls, one file per method."""
