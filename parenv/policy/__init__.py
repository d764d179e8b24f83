"""Policies: the interface, adapters for what users have, and how new weights reach a worker's snapshot."""
