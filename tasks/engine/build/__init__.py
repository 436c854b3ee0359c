"""Compiles llama.cpp; uses only the standard library."""
