"""``/``: the page with the playground and the dashboard.

The page needs no key, but its calls to the API do.
"""

from __future__ import annotations

from flask import Blueprint, Response, request
from werkzeug.exceptions import NotFound

from service.routes.page_files import Asset, Assets

#: The page may load and call only this server, and no other page may frame it.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Only the sanitizer may turn text into HTML.
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
_FOR_EVER = "public, max-age=31536000, immutable"


def blueprint() -> Blueprint:
    """The page and its files."""
    routes = Blueprint("page", __name__)
    assets = Assets.read()

    @routes.get("/")
    def index() -> Response:
        return _sent(assets.index, "no-cache")

    @routes.get("/assets/<digest>/<path:name>")
    def file(digest: str, name: str) -> Response:
        if name not in assets.files:
            raise NotFound
        # During an upgrade, a browser may ask this release for another release's files.
        return _sent(assets.files[name], _FOR_EVER if digest == assets.digest else "no-store")

    return routes


def _sent(asset: Asset, cache_control: str) -> Response:
    response = Response(asset.content, content_type=asset.content_type, headers=_HEADERS)
    response.headers["Cache-Control"] = cache_control
    response.add_etag()
    response.make_conditional(request)
    return response
