"""Finds out before a start, or after a failed one, what would not work here, and what to change."""
