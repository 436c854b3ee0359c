"""The engine: one thread owns the model's context and decodes many sequences at once."""
