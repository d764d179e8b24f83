"""The systems whose env steps per second ``parenv bench`` compares."""
