"""Turns a body's bytes into a typed request, or into a 4xx error that names the field."""
