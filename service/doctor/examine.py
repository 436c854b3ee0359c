"""Makes all checks, in the order of a service's start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from service.doctor.build import look_at_build, look_at_kernels
from service.doctor.cores import look_at_cores
from service.doctor.finding import Finding, Level
from service.doctor.memory import look_at_memory
from service.doctor.model_fit import look_at_context, read_model
from service.doctor.place import look_at_metrics_port, look_at_port, look_at_state, look_at_traces
from service.doctor.store import look_at_embedded, look_at_store
from service.settings import ApiSettings
from service.supervisor.settings import LocalSettings
from tasks.settings import WorkerSettings


def examine_model(path: Path, settings: WorkerSettings) -> Iterator[Finding]:
    """Check the model, and whether this machine can run it with ``settings``."""
    facts, findings = read_model(path)
    yield from findings
    does_fit = False
    if facts is not None:
        yield look_at_context(facts, settings.n_ctx)
        yield (memory := look_at_memory(facts, settings))
        does_fit = memory.level is not Level.PROBLEM
    yield from look_at_cores(settings)
    yield look_at_build(settings)
    if does_fit:  # else computing would need memory that isn't there
        yield look_at_kernels(path, settings)
    if settings.metrics_port:
        yield look_at_metrics_port(settings.metrics_host, settings.metrics_port)


def examine_place(api: ApiSettings, local: LocalSettings, redis_url: str | None) -> Iterator[Finding]:
    """Check what the queue and the API need; without ``redis_url``, ``serve`` embeds a Valkey."""
    if redis_url is None:
        yield look_at_embedded(local.queue_memory)
    else:
        yield from look_at_store(redis_url)
    yield look_at_port(api.host, api.port)
    yield look_at_state(local.state_dir.absolute())
    if api.otlp_endpoint:
        yield look_at_traces(api.otlp_endpoint)
