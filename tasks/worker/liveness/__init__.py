"""Whether a child gets on with its work, and what happens to one that doesn't."""
