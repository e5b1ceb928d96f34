"""One request on its way through the simulated cluster."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from sgl_epd.cache.reservation import Reservation, Want
from sgl_epd.planner.models.spec import MediaSize
from sgl_epd.planner.workload import Request
from sgl_epd.protocol.items import Modality
from sgl_epd.scheduler.decode import DecodeJob
from sgl_epd.scheduler.prefill import PrefillJob

if TYPE_CHECKING:
    from sgl_epd.planner.simulator.encoder import Encoder
    from sgl_epd.planner.simulator.language import LanguageWorker


class Item(NamedTuple):
    """One item, and what it is for this model."""

    want: Want
    modality: Modality
    size: MediaSize
    megapixels: float
    content: int
    """Equal for equal bytes, also where copies are encoded one by one (`want` differs then)."""


@dataclasses.dataclass(eq=False, slots=True)
class View:
    """What the router's policies see of a worker (`WorkerView`): what was sent there and is not over."""

    id: str
    incarnation: int = 0
    requests: float = 0.0
    work: float = 0.0

    def lease(self, work: int) -> Lease:
        self.requests += 1
        self.work += work
        return Lease(self, work)


@dataclasses.dataclass(eq=False, slots=True)
class Lease:
    """One request's share of a worker's load, until it is ended."""

    view: View
    work: int
    ended: bool = False

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self.view.requests -= 1
            self.view.work -= self.work


@dataclasses.dataclass(eq=False, slots=True)
class Flight:
    """A request and where it stands. `id` names it in schedulers."""

    request: Request
    items: tuple[Item, ...]
    id: str
    prompt_tokens: int
    encoders: dict[Want, Encoder] = dataclasses.field(default_factory=dict)
    encoded: set[Want] = dataclasses.field(default_factory=set)
    """Of these an encoder has said that they are there."""
    prefiller: LanguageWorker | None = None
    decoder: LanguageWorker | None = None
    """None where prefill decodes as well."""
    reservation: Reservation | None = None
    """Blocks for its embeddings, where they come from encoders."""
    prefill_job: PrefillJob | None = None
    decode_job: DecodeJob | None = None
    granted: bool = False
    """Its decode worker has room for its KV."""
    complete_at: float = -1.0
    """When its embeddings, or its pixels, were all where its prefill is; at once for text."""
    unprepared: int = 0
    """Items that a worker which encodes by itself has not preprocessed."""
    leases: list[Lease] = dataclasses.field(default_factory=list)
    encode_leases: dict[Want, Lease] = dataclasses.field(default_factory=dict)
    encode_wait_s: float = 0.0
    ready_at: float = 0.0
    """When prefill could begin: complete, and room for its KV where it goes on."""
    started_at: float = -1.0
    """When prefill took it up."""
    first_token_at: float = 0.0
    done: bool = False

    def end_leases(self) -> None:
        for lease in (*self.leases, *self.encode_leases.values()):
            lease.end()
