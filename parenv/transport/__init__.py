"""Frames between driver and workers of one machine over ZeroMQ. Only here and in ``remote.net`` is it known."""
