"""``python -m loadtest.builds``: compares builds of llama.cpp's libraries alone, without a server."""
