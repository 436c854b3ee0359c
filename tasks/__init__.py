"""Everything behind the queue: the wire contract, the store, the Celery worker, the engine."""
