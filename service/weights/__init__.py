"""Gets model files, and asks llama.cpp about them in a separate process."""
