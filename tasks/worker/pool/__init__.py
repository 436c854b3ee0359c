"""Celery's pool, with several requests a child. Only here are private names of billiard and Celery used."""
