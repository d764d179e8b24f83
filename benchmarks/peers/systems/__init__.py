"""Compared systems. Each module is imported only in the virtual environment that has its library."""
