"""The systems that are compared: one file each, imported only in its own virtual environment."""
