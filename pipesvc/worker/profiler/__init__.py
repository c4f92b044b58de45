"""The process that measures what a model's layers and a worker's links cost, before any run."""
