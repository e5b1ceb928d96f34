"""Who may call: clients by API key, control routes by admin key. Keys are compared in constant time, never logged."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable

from sgl_epd.errors import AuthenticationError, PermissionDeniedError


class KeyRing:
    """Digests of the accepted keys. Comparing digests hides the keys' lengths, and all are compared, found or not."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def holds(self, key: bytes | None) -> bool:
        if key is None:
            return False
        digest = _digest(key)
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return found


class Auth:
    """Without any key everything is open, as in SGLang. Without an admin key, control routes take the clients' keys."""

    def __init__(self, api_keys: Iterable[str] = (), admin_keys: Iterable[str] = ()) -> None:
        self._clients = KeyRing(api_keys)
        self._admins = KeyRing(admin_keys)

    @property
    def has_client_keys(self) -> bool:
        return bool(self._clients)

    def check_client(self, authorization: bytes | None, x_api_key: bytes | None = None) -> None:
        """Raises `AuthenticationError` (401). An admin key opens the clients' routes too."""
        if not self._clients:
            return
        key = presented_key(authorization, x_api_key)
        if not (self._clients.holds(key) | self._admins.holds(key)):
            raise _refusal(key)

    def check_admin(self, authorization: bytes | None, x_api_key: bytes | None = None) -> None:
        """Raises 401, or `PermissionDeniedError` (403) for a client's key where an admin key is needed."""
        if not self._admins:
            self.check_client(authorization, x_api_key)
            return
        key = presented_key(authorization, x_api_key)
        if self._admins.holds(key):
            return
        if self._clients.holds(key):
            raise PermissionDeniedError("this route needs the admin key", code="admin_key_required")
        raise _refusal(key)


def admin_keys(admin_api_key: str | None, control_plane_api_keys: Iterable[str]) -> tuple[str, ...]:
    """The keys that may control: `--admin-api-key`, and those of `--control-plane-api-keys` whose role is admin."""
    parts = [entry.split(":", 3) for entry in control_plane_api_keys]
    keys = [key for _, _, role, key in parts if role.lower() == "admin"]
    return (*([admin_api_key] if admin_api_key else []), *keys)


def presented_key(authorization: bytes | None, x_api_key: bytes | None = None) -> bytes | None:
    """The key of `Authorization: Bearer KEY`, or of `X-Api-Key` (as Anthropic's clients send it).

    Also the password of `Basic`, because that is all a stock encoder can be made to send: it registers with
    `--encoder-register-urls http://any:KEY@router:30000`.
    """
    if authorization is None:
        return x_api_key
    scheme, _, value = authorization.strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip()
    if scheme.lower() == b"basic":
        return _basic_password(value.strip())
    return x_api_key


def _basic_password(encoded: bytes) -> bytes | None:
    try:
        return base64.b64decode(encoded, validate=True).partition(b":")[2] or None
    except ValueError:
        return None


def _refusal(key: bytes | None) -> AuthenticationError:
    if key is None:
        return AuthenticationError("an API key is needed: Authorization: Bearer KEY", code="missing_api_key")
    return AuthenticationError("the API key is not valid", code="invalid_api_key")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
