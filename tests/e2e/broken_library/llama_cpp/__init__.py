"""A binding whose library lacks a symbol: importing this fails as ctypes does in the real binding."""

import ctypes

llama_decode = ctypes.CDLL(None).llama_symbol_that_is_missing
