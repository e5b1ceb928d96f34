"""What the router knows about one worker: its address and role, its health, and the work that it holds.

`WorkerSpec` is what a user or a registration says. `Worker` is the router's live record of it. Policies see a worker
only through `WorkerView`, which is read-only and small enough for a simulator to provide too.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Protocol
from urllib.parse import urlsplit

from sgl_epd.errors import BadRequestError
from sgl_epd_router.breaker import Breaker, BreakerState
from sgl_epd_router.health import HealthState
from sgl_epd_router.load import LoadView


class Role(enum.StrEnum):
    """Which stage a worker serves; `REGULAR` serves a whole request by itself (aggregated)."""

    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"
    REGULAR = "regular"


class Outcome(enum.StrEnum):
    """How a lease ended, seen from the worker that held it.

    Only `FAILURE` is the worker's fault. `CLIENT_ERROR` (4xx) and `BACKPRESSURE` (429/503) prove that it is alive, and
    `CANCELLED` (client gone, other leg failed) says nothing about it.
    """

    OK = "ok"
    CLIENT_ERROR = "client_error"
    BACKPRESSURE = "backpressure"
    FAILURE = "failure"
    CANCELLED = "cancelled"


class Source(enum.StrEnum):
    """Who named a worker: flags stay for good, `API` until removed, `REGISTERED` only while it gives signs of life."""

    FLAG = "flag"
    API = "api"
    REGISTERED = "registered"


class WorkerView(Protocol):
    """What a policy may know about a worker."""

    @property
    def id(self) -> str:
        """Stable for as long as the worker is listed."""

    @property
    def incarnation(self) -> int:
        """Changes when the worker (re)joins, so that affinity to a lost cache is forgotten."""

    @property
    def requests(self) -> float:
        """Requests in flight there: ours, and those that reports show of others."""

    @property
    def work(self) -> float:
        """Pending work: patches for encode, tokens for the other roles."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Where a worker listens and what it is for. Immutable; changing it means a new worker."""

    url: str
    role: Role = Role.REGULAR
    bootstrap_port: int | None = None
    encoder_port: int | None = None
    """Port of its encoder list (`--encoder-bootstrap-port` there), of workers that call encoders themselves."""
    model_id: str | None = None
    api_key: str | None = dataclasses.field(default=None, repr=False)
    priority: int = 50
    """Shown, as the gateway does; no policy looks at it."""
    cost: float = 1.0
    """How much longer than others it takes for the same work: 2 for one that is half as fast."""
    labels: tuple[tuple[str, str], ...] = ()
    source: Source = Source.FLAG
    heartbeat_ttl_s: float | None = None
    """Self-registered only: silence after which it is forgotten (None: `--worker-heartbeat-ttl-secs`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", normalize_url(self.url))

    @property
    def id(self) -> str:
        """The same for the same URL and role on every router replica and after each return."""
        return worker_id(self.role, self.url)


def worker_id(role: Role, url: str) -> str:
    parts = urlsplit(url)
    path = parts.path.strip("/").replace("/", "-")
    return "-".join(p for p in (role.value, (parts.hostname or "").replace(":", "."), str(parts.port), path) if p)


def normalize_url(url: str) -> str:
    """`host:port` or an http(s) URL to `scheme://host:port[/path]`. Raises `BadRequestError` on anything else."""
    text = url.strip()
    if "://" not in text:
        text = "http://" + text
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise BadRequestError(f"{url!r} is not a worker URL: {error}", param="url") from error
    if parts.scheme not in ("http", "https"):
        raise BadRequestError(f"worker URL {url!r} must start with http:// or https://", param="url")
    if not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
        raise BadRequestError(
            f"worker URL {url!r} must be scheme://host:port without user, query or fragment", param="url"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"


class Worker:
    """The live record of one worker. Owned by the registry; everyone else reads."""

    __slots__ = (
        "added_at",
        "breaker",
        "draining",
        "health",
        "heartbeat_at",
        "host",
        "id",
        "incarnation",
        "load",
        "port",
        "removing",
        "requests",
        "slot",
        "spec",
        "url",
        "work",
    )

    def __init__(
        self, spec: WorkerSpec, *, slot: int, breaker: Breaker, health: HealthState, load: LoadView, now: float
    ) -> None:
        parts = urlsplit(spec.url)
        self.spec = spec
        self.id = spec.id
        self.url = spec.url
        self.host = parts.hostname or ""
        self.port = parts.port or 80
        self.slot = slot
        self.incarnation = 0
        self.breaker = breaker
        self.health = health
        self.load = load
        self.added_at = now
        self.heartbeat_at = now
        self.draining = False
        self.removing = False
        self.requests = 0.0
        self.work = 0.0

    @property
    def role(self) -> Role:
        return self.spec.role

    @property
    def bootstrap_port(self) -> int | None:
        return self.spec.bootstrap_port

    @property
    def api_key(self) -> str | None:
        return self.spec.api_key

    @property
    def model_id(self) -> str | None:
        return self.spec.model_id

    @property
    def healthy(self) -> bool:
        return self.health.healthy

    @property
    def state(self) -> str:
        """In words, for people: why it takes requests or why not."""
        if self.removing:
            return "removing"
        if self.draining:
            return "draining"
        if not self.health.healthy:
            return "unhealthy"
        return "serving" if self.breaker.state is BreakerState.CLOSED else f"breaker {self.breaker.state}"

    def refresh(self, now: float) -> None:
        """Bring `requests` and `work` up to date: policies read plain attributes, because they read them often."""
        self.requests, work = self.load.view(now)
        self.work = work * self.spec.cost

    def __repr__(self) -> str:
        return f"<Worker {self.id} requests={self.requests:g}>"
