"""Frames between driver and workers over ZeroMQ. The only place that knows of it."""
