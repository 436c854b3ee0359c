"""How a worker ends that can't go on, and what it says."""
