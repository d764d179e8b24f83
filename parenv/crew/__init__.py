"""Supervision of the workers of a pool, a vector env or a population: start, calls, failures, restarts, end."""
