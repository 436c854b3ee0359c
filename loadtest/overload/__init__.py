"""``python -m loadtest.overload``: sends several times the requests that the server can take, for a while."""
