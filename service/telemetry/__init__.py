"""An API process's request log, metrics and traces."""
