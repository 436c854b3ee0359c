"""Checks that the threads have enough cores."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil

from service.doctor.finding import Finding
from tasks.settings import WorkerSettings, available_cores

#: Share of the cores that other programs may use before the check warns.
_BUSY = 0.5


def look_at_cores(settings: WorkerSettings) -> Iterator[Finding]:
    """Whether each thread has a core; the settings refuse too many threads, except with --oversubscribe."""
    shape, cores = settings.shape, available_cores()
    threads = shape.workers * shape.threads
    told = f"{shape.workers} children x {shape.threads} threads on {cores} available cores"
    yield Finding.judge("cores", told, warning=_advice(threads, cores))
    load = os.getloadavg()[0]
    busy = "Other programs compute here too; threads that wait for a core make every step slower. End them."
    yield Finding.judge("load", f"{load:.1f} (1 min)", warning=busy if load > _BUSY * cores else "")


def _advice(threads: int, cores: int) -> str:
    if threads > cores:
        return "Threads wait for each other's core; drop --oversubscribe and lower --workers or --threads."
    if threads < cores:
        return f"{cores - threads} cores have nothing to do; raise --workers or --threads."
    real = psutil.cpu_count(logical=False) or cores
    if cores == psutil.cpu_count() and threads > real:
        return f"Only {real} of them are physical cores; try --threads for that many with `bench`."
    return ""
