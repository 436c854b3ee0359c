"""llama.cpp through llama-cpp-python; the only importer of llama_cpp."""
