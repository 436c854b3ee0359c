"""``python -m loadtest.overload``: several times the requests that fit, for a while."""
