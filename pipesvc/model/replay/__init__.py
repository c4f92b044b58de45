"""Cutting any `nn.Module`: every worker runs the user's own forward and does only its stage's part of it."""
