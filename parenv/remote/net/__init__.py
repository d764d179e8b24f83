"""Frames between driver and hosts over TCP: encrypted, authenticated, and bounded."""
