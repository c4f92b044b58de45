"""Whether a job gives the same numbers in a pipeline as in one process, on the user's own model and data."""
