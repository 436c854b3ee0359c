"""From a message to a finished log: what a worker host does with a request."""
