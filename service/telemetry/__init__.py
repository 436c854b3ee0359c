"""What can be seen of an API process: request log, metrics, traces."""
