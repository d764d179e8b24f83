"""Workers and their tasks."""
