"""Checks the ``Host`` header where nothing else keeps a stranger's web page out.

A page of any site may let its name point to 127.0.0.1 (DNS rebinding); the browser then takes this server
for that site's own, and the page can use it. But the browser still sends the site's name. So an API without
keys that only this machine can reach answers requests for this machine's names alone.
"""

from __future__ import annotations

import re

from flask import Flask, request

from service.errors import ApiError

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:\[\]]*)(?::[0-9]*)?")


def register(app: Flask, hosts: frozenset[str]) -> None:
    """Answer 403 to requests for other hosts than ``hosts``; if ``hosts`` is empty, any host will do."""
    if not hosts:
        return

    @app.before_request
    def check() -> None:
        header = request.environ.get("HTTP_HOST")
        if header is not None and _name(header) not in hosts:  # browsers always send it
            raise _not_allowed(header)


def _name(header: str) -> str | None:
    """The name without the port."""
    found = _HOST.fullmatch(header)
    return None if found is None else found[1].lower()


def _not_allowed(header: str) -> ApiError:
    message = (
        f"This server has no API keys and answers only requests for this machine, not for {header[:100]!r}. "
        "If it is to be reached by this name, as behind a proxy, start it with --allowed-hosts "
        "(INFERENCE_ALLOWED_HOSTS)."
    )
    return ApiError(403, "host_not_allowed", message, "Host", is_final=True)
