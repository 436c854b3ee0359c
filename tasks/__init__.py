"""Everything behind the queue: the contract, the store, the Celery worker, the engine."""
