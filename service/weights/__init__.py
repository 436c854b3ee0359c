"""Getting model files, and asking llama.cpp about them in a process of its own."""
