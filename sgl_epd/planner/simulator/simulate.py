"""One workload through one cluster: who gets what when, and what users would have felt."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

from sgl_epd.cache.layout import BlockLayout
from sgl_epd.cache.mm_block_manager import MMBlockManager
from sgl_epd.cache.reservation import Want
from sgl_epd.errors import ConfigError, RequestError
from sgl_epd.planner.cost_model import CostModel
from sgl_epd.planner.devices import Device
from sgl_epd.planner.memory import MemorySettings, RequestSize, WorkerMemory
from sgl_epd.planner.metrics import Finished, Metrics
from sgl_epd.planner.models.spec import ModelSpec
from sgl_epd.planner.simulator.encoder import Encoder
from sgl_epd.planner.simulator.events import Events
from sgl_epd.planner.simulator.flight import Flight, Item, View
from sgl_epd.planner.simulator.language import LanguageWorker
from sgl_epd.planner.simulator.placement import Pool, item_key
from sgl_epd.planner.simulator.plan import ClusterPlan, WorkerPlan
from sgl_epd.planner.stages import E, Stage
from sgl_epd.planner.workload import Media, Request
from sgl_epd.protocol.items import HASH_BYTES
from sgl_epd.scheduler.decode import DecodeScheduler
from sgl_epd.scheduler.encode import EncodeScheduler
from sgl_epd.scheduler.kv import KVBlocks
from sgl_epd.scheduler.prefill import PrefillScheduler

_BLOCK_ROWS = 16
_KNOWN_SIZES = 4096
"""Distinct media sizes that are remembered."""


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What the cluster is made of. `cost` gives the cost model of workers on so many devices."""

    model: ModelSpec
    device: Device
    cost: Callable[[int], CostModel]


class Simulation:
    """Runs once. Everything that happens follows from the arguments."""

    def __init__(self, plan: ClusterPlan, hardware: Hardware, metrics: Metrics, *, seed: int = 0) -> None:
        self.flights: dict[str, Flight] = {}
        self.events = Events()
        self.metrics = metrics
        self._plan, self._hardware = plan, hardware
        self.stopped = False
        """More than `most_bad` requests missed the targets."""
        self._most_bad: int | None = None
        self._sizes: dict[Media, Item] = {}
        views = [View(f"{worker}-{index}") for index, worker in enumerate(plan.workers)]
        self._workers = [self._worker(worker) for worker in plan.workers]
        self._pools: dict[Stage, Pool] = {}
        self._members = {stage: plan.of(stage) for stage in Stage}
        policies = {
            Stage.ENCODE: plan.encode_policy,
            Stage.PREFILL: plan.prefill_policy,
            Stage.DECODE: plan.decode_policy,
        }
        for stage, members in self._members.items():
            self._pools[stage] = Pool([views[index] for index in members], policies[stage], seed)
        self._separate_encode = any(worker.stages == E for worker in plan.workers)
        self._separate_decode = self._members[Stage.DECODE] != self._members[Stage.PREFILL]

    def run(self, requests: Iterable[Request], *, most_bad: int | None = None) -> Metrics:
        """Until the last of them is over, or until more than `most_bad` have missed the targets."""
        self._most_bad = most_bad
        self._feed(iter(requests))
        self.events.run()
        if self.flights and not self.stopped:
            raise RuntimeError(f"{len(self.flights)} simulated requests stand still, the first is {min(self.flights)}")
        return self.metrics

    def utilisation(self) -> dict[str, float]:
        """Busy share of each worker's device, over the whole run."""
        names = [f"{worker}-{index}" for index, worker in enumerate(self._plan.workers)]
        span = self.events.now or 1.0
        return {name: worker.busy_s / span for name, worker in zip(names, self._workers, strict=True)}

    # Hooks of the workers

    def first_token(self, flight: Flight) -> None:
        flight.first_token_at = self.events.now

    def finished(self, flight: Flight) -> None:
        request = flight.request
        waits = [("prefill", flight.started_at - flight.ready_at)]
        if flight.items:
            waits.append(("encode", flight.encode_wait_s))
        if flight.decoder is not None:
            waits.append(("decode", flight.ready_at - flight.complete_at))
        done = Finished(request.at, flight.first_token_at, self.events.now, request.output_tokens, tuple(waits))
        self.metrics.add(done, request.number)
        self._over(flight)

    def refused(self, flight: Flight) -> None:
        """No room at one of its workers: the router ends all its legs."""
        if flight.done:
            return
        flight.done = True
        for encoder in dict.fromkeys(flight.encoders.values()):
            encoder.cancel(flight)
        if flight.prefiller is not None:
            flight.prefiller.give_up(flight)
        if flight.decoder is not None:
            flight.decoder.forget(flight)
        self.metrics.fail(flight.request.at, flight.request.number)
        self._over(flight)

    def gap(self, seconds: float, count: int) -> None:
        self.metrics.gap(seconds, count)

    # The router

    def _feed(self, requests: Iterator[Request]) -> None:
        """One request ahead, so that the heap stays small."""
        request = next(requests, None)
        if request is not None:
            self.events.at(request.at + self._hop_s, self._arrive, request, requests)

    def _arrive(self, request: Request, requests: Iterator[Request]) -> None:
        self._feed(requests)
        flight = self._flight(request)
        self.flights[flight.id] = flight
        try:
            self._place(flight)
        except RequestError:
            self.refused(flight)

    def _place(self, flight: Flight) -> None:
        """Decode first, then prefill's blocks, then the encoders: whoever refuses holds nothing of it."""
        now = self.events.now
        if self._separate_decode:
            pool = self._pools[Stage.DECODE]
            choice = pool.choose(pool.key(flight), now)
            flight.leases.append(pool.views[choice].lease(flight.prompt_tokens))
            flight.decoder = self._language(Stage.DECODE, choice)
            flight.decoder.make_room(flight)
        pool = self._pools[Stage.PREFILL]
        choice = pool.choose(pool.key(flight), now)
        flight.leases.append(pool.views[choice].lease(flight.prompt_tokens))
        if flight.items and self._separate_encode:
            self._choose_encoders(flight)
        self._language(Stage.PREFILL, choice).expect(flight)
        for encoder in dict.fromkeys(flight.encoders.values()):
            encoder.submit(flight, [item for item in flight.items if flight.encoders[item.want] is encoder])

    def _choose_encoders(self, flight: Flight) -> None:
        pool, choice = self._pools[Stage.ENCODE], -1
        for item in flight.items:
            if item.want in flight.encoders:
                continue
            if choice < 0 or self._plan.spread:
                choice = pool.choose(item_key(item), self.events.now)
            worker = self._workers[self._members[Stage.ENCODE][choice]]
            assert isinstance(worker, Encoder)
            flight.encoders[item.want] = worker
            flight.encode_leases[item.want] = pool.views[choice].lease(item.size.patches)

    def _item_encoded(self, flight: Flight, want: Want) -> None:
        if flight.done:
            return
        flight.encode_leases[want].end()
        flight.encoded.add(want)
        assert flight.prefiller is not None
        flight.prefiller.encoded(flight, want)

    def _over(self, flight: Flight) -> None:
        flight.done = True
        flight.end_leases()
        del self.flights[flight.id]
        if self._most_bad is not None and self.metrics.bad > self._most_bad:
            self.stopped = True
            self.events.stop()

    def _language(self, stage: Stage, choice: int) -> LanguageWorker:
        worker = self._workers[self._members[stage][choice]]
        assert isinstance(worker, LanguageWorker)
        return worker

    @property
    def _hop_s(self) -> float:
        return self._hardware.cost(self._plan.workers[0].tp).hop_s

    # Making things

    def _flight(self, request: Request) -> Flight:
        items = tuple(self._item(media, index, request.number) for index, media in enumerate(request.media))
        prompt = request.text_tokens + sum(item.size.prompt_tokens for item in items)
        return Flight(request, items, str(request.number), prompt)

    def _item(self, media: Media, index: int, number: int) -> Item:
        shape = media._replace(content=0)
        known = self._sizes.get(shape)
        if known is None:
            if len(self._sizes) >= _KNOWN_SIZES:
                self._sizes.clear()
            size = media.size(self._hardware.model.media)
            known = self._sizes[shape] = Item(Want(b"", size.embeddings), media.modality, size, media.megapixels, 0)
        unique = media.content if self._plan.deduplicate else (number << 16) + index
        want = Want(unique.to_bytes(HASH_BYTES, "big", signed=True), known.size.embeddings)
        return known._replace(want=want, content=media.content)

    def _worker(self, worker: WorkerPlan) -> Encoder | LanguageWorker:
        plan, model = self._plan, self._hardware.model
        memory = WorkerMemory(model, self._hardware.device, worker.stages, plan.memory, worker.tp)
        blocks = MMBlockManager(_layout(plan.memory, model), max_waiting=1 << 30)
        cost = self._hardware.cost(worker.tp)
        if worker.stages == E:
            scheduler = EncodeScheduler(plan.encode, max_batch_tokens=blocks.layout.num_blocks * _BLOCK_ROWS // 2)
            return Encoder(
                self.events,
                cost,
                scheduler,
                blocks,
                cores=plan.preprocess_cores,
                flights=self.flights,
                on_item=self._item_encoded,
                on_refusal=self.refused,
            )
        kv = KVBlocks(plan.kv_tokens or kv_tokens(memory, plan))
        return LanguageWorker(
            self.events,
            cost,
            model,
            worker.stages,
            PrefillScheduler(plan.prefill, kv),
            DecodeScheduler(plan.decode, kv),
            blocks,
            self,
            cores=plan.preprocess_cores,
            reserve_tokens=plan.decode.num_reserved_decode_tokens,
        )


def kv_tokens(memory: WorkerMemory, plan: ClusterPlan) -> int:
    """KV cache beside the activations of the largest step. Raises `ConfigError` if there is no room for any."""
    chunk = plan.prefill.chunked_prefill_size
    step = chunk if chunk > 0 else plan.prefill.max_prefill_tokens
    tokens = memory.kv_tokens(RequestSize(step if Stage.PREFILL in memory.stages else plan.decode.max_running_requests))
    if tokens < 1:
        raise ConfigError(f"{memory.model.name} does not fit into {memory.tp} x {memory.device.name} for {plan.name}")
    return tokens


def fixed_cost(costs: Mapping[int, CostModel]) -> Callable[[int], CostModel]:
    """Cost models by the number of devices, for `Hardware`. Raises `ConfigError` for one that is missing."""

    def cost(tp: int) -> CostModel:
        if tp not in costs:
            raise ConfigError(f"there is no cost model for workers on {tp} devices, only for {sorted(costs)}")
        return costs[tp]

    return cost


def _layout(settings: MemorySettings, model: ModelSpec) -> BlockLayout:
    """As `MMCacheConfig` cuts it, by bytes."""
    blocks = settings.mm_cache_bytes // (_BLOCK_ROWS * model.row_bytes)
    if blocks < 1:
        raise ConfigError(f"an embedding cache of {settings.mm_cache_bytes} bytes holds nothing")
    return BlockLayout(blocks, _BLOCK_ROWS, model.row_bytes)
