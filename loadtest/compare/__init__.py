"""``python -m loadtest.compare``: compares this server with others on the same file, prompts and client."""
