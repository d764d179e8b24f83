"""Environments that sessions lease: :class:`parenv.SessionPool`."""
