"""A binding whose library lacks a symbol that it wants: this fails as ctypes does in the real one."""

import ctypes

llama_decode = ctypes.CDLL(None).llama_symbol_that_is_missing
