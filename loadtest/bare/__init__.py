"""Builds of llama.cpp's libraries, each used in a process of its own, without server, queue or text."""
