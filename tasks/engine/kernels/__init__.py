"""Which of llama.cpp's kernels compute, proved on this machine before they serve."""
