"""Sends a request's events to its client."""
