"""What Celery's consumer does differently here: it survives what Redis says, and what remote control asks."""
