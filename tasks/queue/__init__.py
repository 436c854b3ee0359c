"""The capped queue: how a request gets into it, and how a worker holds a lease on one."""
