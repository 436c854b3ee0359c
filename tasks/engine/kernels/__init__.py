"""Chooses which of llama.cpp's kernels serve, and proves them on this machine first."""
