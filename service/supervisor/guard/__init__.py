"""Ends the parts of a service when their supervisor is killed."""
