"""One step of the engine: what is computed, how it is sampled, and what is done when it fails."""
