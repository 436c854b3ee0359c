"""Finds out what would not work on this machine, before a start or after a failed one, and what to change."""
