"""Generates tokens; uses no Celery, Redis or HTTP."""
