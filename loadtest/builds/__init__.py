"""``python -m loadtest.builds``: builds of llama.cpp's libraries against each other, nothing around them."""
