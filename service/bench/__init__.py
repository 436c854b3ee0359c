"""Measurements of whole services on this machine: ``bench --sweep`` and ``tune``."""
