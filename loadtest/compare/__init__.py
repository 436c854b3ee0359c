"""``python -m loadtest.compare``: this server and its peers on the same file, prompts and client, in turn."""
