"""What llama.cpp and llama-cpp-python know of a model's text: its special tokens, and chat templates."""
