"""Generates tokens; knows no Celery, no Redis, no HTTP."""
