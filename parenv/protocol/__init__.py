"""Messages between the main process and workers, their order, and their encoding as frames.

This package does no I/O. ``messages`` defines the messages and ``conversation`` their allowed order. ``data`` encodes
values, and ``frames`` encodes messages.
"""
