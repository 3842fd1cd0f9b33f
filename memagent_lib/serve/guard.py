"""Decide which requests are answered, so that no page of another site can start a reading through the browser.

Such a page can make a browser send requests to this machine, under a host name of its own that resolves to this
machine, or in a form that browsers send without a preflight request. Only a request's method and headers are examined.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from memagent_lib.serve import wire


class Guard:
    """Middleware that refuses requests with a foreign Host or Origin, and POST requests that are not JSON.

    The response states the reason. ``localhost`` and the loopback addresses are this machine's own names; ``allowed``
    adds more.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str] = ()):
        self._app = app
        self._allowed = {name.lower().rstrip(".") for name in allowed}  # a full host name may end in a dot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["type"] == "http":
            refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal is None:
            return await self._app(scope, receive, send)
        message, status = refusal
        await JSONResponse(wire.error(message, status), status)(scope, receive, send)

    def _refusal(self, method: str, headers: Headers) -> tuple[str, int] | None:
        """Return the message and the status of a refusal, or None if the request is allowed."""
        host = headers.get("host", "localhost")  # HTTP/1.0 has no such header, but browsers do not use HTTP/1.0
        if not self._is_own(f"//{host}"):
            name = _name(f"//{host}") or "NAME"
            return (
                f"the Host {host!r} is not a name of this machine (localhost, 127.0.0.1, [::1]); "
                f"to allow it, start the server with --allow-host {name}"
            ), 400
        origin = headers.get("origin")
        if origin is not None and not self._is_own(origin):
            return f"a page of {origin!r} may not use this server; its Origin is not this machine", 403
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            return f"the Content-Type must be application/json, got {kind or 'none'!r}", 415
        return None

    def _is_own(self, address: str) -> bool:
        name = _name(address)
        if name is None:
            return False
        if name == "localhost" or name in self._allowed:
            return True
        try:
            return ip_address(name).is_loopback
        except ValueError:
            return False


def _name(address: str) -> str | None:
    """Return the host in an address, without port and final dot, or None if there is no host."""
    try:
        parts = urlsplit(address)
        name = parts.hostname
    except ValueError:
        return None
    return name.rstrip(".") if name else None
