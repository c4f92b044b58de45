"""The coordinator program: queue, plans, steps and results of all runs; it holds no tensor and runs no user code."""
