"""Celery's pool, with several requests a child; every private name of billiard and Celery is here."""
