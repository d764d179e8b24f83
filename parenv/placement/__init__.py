"""Placements start workers, carry messages to and from them, watch them and end them."""
