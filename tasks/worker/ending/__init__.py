"""How a worker that can't go on ends, and what it says."""
