"""Generators of schedules: each gives the forwards and backwards of one step in order, for a stage or for a worker.

What a step has once (norms, decision, update), names, and what a schedule is defined for are `core.schedules`'s.
"""
