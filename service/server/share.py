"""What this API process shares with its siblings; gunicorn's hooks set it before the application loads."""

from __future__ import annotations

from service.telemetry.pages import Share

#: This process's share of the counts; ``None`` in a process that gunicorn did not fork.
current: Share | None = None
