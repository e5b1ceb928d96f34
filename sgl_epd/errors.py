"""The one exception tree.

EpdError
├── ConfigError          wrong flag, file or environment value: exit code 2 and a sentence that helps
├── EngineMismatchError  an upstream symbol is not what a hook was written for: the worker must not start
├── WorkerError          a worker could not be started or died
├── TransportError       a connection to a peer failed (`sgl_epd.net`)
│   ├── ConnectError         no connection could be made: nothing was sent
│   ├── DisconnectedError    the peer went away before its answer was complete
│   └── PeerProtocolError    the peer sent something that its protocol does not know
├── TransferError        bytes could not be moved to a peer (`sgl_epd.transfer`)
│   ├── PeerLostError        the peer is gone: whatever else goes there fails as well
│   └── TransferTimeoutError not done by the deadline; the peer may be slow or gone
└── RequestError         ends one request; carries the HTTP status and OpenAI's error fields
    ├── BadRequestError          400  the client's input is wrong
    ├── AuthenticationError      401
    ├── PermissionDeniedError    403
    ├── NotFoundError            404
    ├── RequestTimeoutError      408  waited too long in our queue
    ├── ConflictError            409
    ├── PayloadTooLargeError     413
    ├── RateLimitError           429  with Retry-After
    ├── UpstreamError            502  a worker failed and no other could take over
    ├── UnavailableError         503  no worker can take the request now
    └── DeadlineError            504  a stage or the whole request passed its deadline
"""

from __future__ import annotations

from typing import Any, ClassVar


class EpdError(Exception):
    """Root of the tree; catching it catches all that this project raises on purpose."""


class ConfigError(EpdError):
    """A flag, file or environment value is wrong. The message is shown to the user as it is."""


class EngineMismatchError(EpdError):
    """An SGLang symbol is missing or differs from the version a hook was written for."""


class WorkerError(EpdError):
    """A worker process could not be started, or died and cannot be replaced."""


class TransportError(EpdError):
    """A connection to a peer failed; says nothing about who is to blame."""


class ConnectError(TransportError):
    """No connection could be made in time, so the peer has seen nothing of the request."""


class DisconnectedError(TransportError):
    """The peer closed or reset the connection before its answer was complete."""


class PeerProtocolError(TransportError):
    """The peer's bytes are not a well-formed message of the protocol spoken."""


class TransferError(EpdError):
    """A write to a peer's memory failed: some, all or none of its bytes may have arrived."""


class PeerLostError(TransferError):
    """The peer is gone, so every other write to it fails as well."""


class TransferTimeoutError(TransferError):
    """The write was not done by its deadline."""


class RequestError(EpdError):
    """Ends one request. `status` is the HTTP status, `retry_after_s` becomes `Retry-After`."""

    status: ClassVar[int] = 500
    error_type: ClassVar[str] = "InternalServerError"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = self.status if code is None else code
        self.retry_after_s = retry_after_s

    def to_openai(self) -> dict[str, Any]:
        """The body that OpenAI clients understand."""
        return {
            "error": {
                "message": self.message,
                "type": self.error_type,
                "param": self.param,
                "code": self.code,
            }
        }


class BadRequestError(RequestError):
    status = 400
    error_type = "BadRequestError"


class AuthenticationError(RequestError):
    status = 401
    error_type = "AuthenticationError"


class PermissionDeniedError(RequestError):
    status = 403
    error_type = "PermissionDeniedError"


class NotFoundError(RequestError):
    status = 404
    error_type = "NotFoundError"


class RequestTimeoutError(RequestError):
    status = 408
    error_type = "RequestTimeoutError"


class ConflictError(RequestError):
    status = 409
    error_type = "ConflictError"


class PayloadTooLargeError(RequestError):
    status = 413
    error_type = "PayloadTooLargeError"


class RateLimitError(RequestError):
    status = 429
    error_type = "RateLimitError"


class UpstreamError(RequestError):
    status = 502
    error_type = "UpstreamError"


class UnavailableError(RequestError):
    status = 503
    error_type = "ServiceUnavailableError"


class DeadlineError(RequestError):
    status = 504
    error_type = "DeadlineExceededError"
