"""Who is signed in at the review desk: an API key in a cookie that scripts cannot read.

Nothing is kept on the server, so every replica knows every session, and a revoked key ends its sessions at once. A form
carries a token that only a page of this session can hold; a request that another site caused is refused as well.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from muniment.cluster.schemas.base import text_fault
from muniment.policies.errors import Forbidden

COOKIE = "muniment_desk"
PATH = "/console"
_MAX_COOKIE_CHARS = 3_000
_TOKEN_CHARS = 32


@dataclass(frozen=True, slots=True)
class Session:
    """What was given at sign-in. ``user`` and ``company`` only where the key names none."""

    key: str
    user: str | None = None
    company: str | None = None

    @property
    def token(self) -> str:
        """What every form of this session carries."""
        return hmac.new(self.key.encode(), b"muniment desk form", hashlib.sha256).hexdigest()[:_TOKEN_CHARS]


def read_session(request: Request) -> Session | None:
    """The session of the request's cookie; None where there is none that can be read."""
    cookie = request.cookies.get(COOKIE, "")
    if not cookie or len(cookie) > _MAX_COOKIE_CHARS:
        return None
    try:
        key, user, company = json.loads(base64.urlsafe_b64decode(cookie))
    except (binascii.Error, ValueError, TypeError, RecursionError):
        return None
    if not isinstance(key, str) or not all(isinstance(name, str) or name is None for name in (user, company)):
        return None
    # JSON can spell what is no text, and what no header and no token could carry.
    if any(name is not None and text_fault(name) for name in (key, user, company)):
        return None
    return Session(key, user, company)


def begin(response: Response, session: Session, request: Request) -> None:
    """Signs in: the cookie lasts as long as the browser does."""
    content = json.dumps([session.key, session.user, session.company]).encode()
    cookie = base64.urlsafe_b64encode(content).decode()
    response.set_cookie(COOKIE, cookie, path=PATH, httponly=True, samesite="lax", secure=is_https(request))


def end(response: Response) -> None:
    """Signs out."""
    response.delete_cookie(COOKIE, path=PATH, httponly=True, samesite="lax")


def is_https(request: Request) -> bool:
    """Whether the browser's side of the connection is encrypted."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"


def refuse_other_sites(request: Request) -> None:
    """Raises ``Forbidden`` for a form that another site sent (Fetch Metadata; else the Origin)."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site not in ("same-origin", "none"):
            raise Forbidden("the form was sent by another site")
        return
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise Forbidden("the form was sent by another site")


def check_token(session: Session, token: str) -> None:
    """Raises ``Forbidden`` for a form that is not of this session."""
    if not hmac.compare_digest(token.encode(), session.token.encode()):
        raise Forbidden("the form is not of this session; reload the page")
