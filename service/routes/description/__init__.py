"""Describes the API: what each route takes and answers."""
