"""Uses llama.cpp through llama-cpp-python; only this package imports llama_cpp."""
