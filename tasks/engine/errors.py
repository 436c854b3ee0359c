"""Errors of a model; this module doesn't import llama.cpp."""

#: How the message begins if there is no memory for a context. Other processes get only an error's text.
NO_MEMORY = "no memory for"


class ModelError(Exception):
    """The model can't be served; the message says why and what to do."""


class KernelsError(ModelError):
    """llama.cpp can't compute this model here; the message names each kernel set that was tried."""
