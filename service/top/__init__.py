"""What `inference-server top` shows."""
