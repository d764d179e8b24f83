"""Supervision of workers for all products: start, calls, failures, restarts, end."""
