"""Runs the parts of the service on one machine: starts, watches, restarts and ends them, in order."""
