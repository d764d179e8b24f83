"""Encrypted and authenticated messages between the main process and hosts over TCP, with limits on their cost."""
