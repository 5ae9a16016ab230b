"""BehaviorTrace: tests whether an attribution method finds the rollouts that taught a behaviour."""
