"""A place in the queue, or a refusal that says when to come again."""
