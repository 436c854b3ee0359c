"""What can be wrong with a model. Nothing of llama.cpp is imported here."""

#: How the message begins when a context's memory can't be had; errors reach other processes as text.
NO_MEMORY = "no memory for"


class ModelError(Exception):
    """The model can't be served; the message says why and what to do."""


class KernelsError(ModelError):
    """llama.cpp can't compute this model here; the message names each kernel set that was tried."""
