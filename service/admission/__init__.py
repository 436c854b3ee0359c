"""Gives a request a place in the queue, or refuses it and says when to retry."""
