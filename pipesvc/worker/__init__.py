"""What runs on a worker's host: the agent (no torch) and the children that it supervises."""
