"""OpenTelemetry traces, behind the `[tracing]` extra and `--enable-trace`.

A request is one span with a child span for each leg. The context of a client's `traceparent` header is continued, and
each leg carries its own on to its worker (SGLang's `--enable-trace` continues it there).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

from sgl_epd.errors import ConfigError

Header = tuple[bytes, bytes]


TRACE_HEADERS = frozenset((b"traceparent", b"tracestate"))


class Span(Protocol):
    """One timed operation. `end` must be called once."""

    def child(self, name: str, attributes: Mapping[str, str | int] | None = None) -> Span: ...

    def headers(self) -> list[Header]:
        """`traceparent` (and `tracestate`) that continue this span at a worker."""

    def end(self, status: int = 0, error: str | None = None) -> None: ...


class Tracer(Protocol):
    def request(self, route: str, headers: Iterable[Header]) -> Span: ...

    def close(self) -> None: ...


CURRENT_SPAN: ContextVar[Span | None] = ContextVar("sgl_epd_router.span", default=None)
"""The span of the request that this task serves."""


class OtelSpan:
    def __init__(self, otel: Any, tracer: Any, span: Any) -> None:
        self._otel = otel
        self._tracer = tracer
        self._span = span

    def child(self, name: str, attributes: Mapping[str, str | int] | None = None) -> Span:
        context = self._otel.trace.set_span_in_context(self._span)
        span = self._tracer.start_span(name, context=context, attributes=dict(attributes or {}))
        return OtelSpan(self._otel, self._tracer, span)

    def headers(self) -> list[Header]:
        carrier: dict[str, str] = {}
        self._otel.propagator.inject(carrier, context=self._otel.trace.set_span_in_context(self._span))
        return [(name.encode(), value.encode()) for name, value in carrier.items()]

    def end(self, status: int = 0, error: str | None = None) -> None:
        if status:
            self._span.set_attribute("http.response.status_code", status)
        if error or status >= 500:
            self._span.set_status(self._otel.trace.StatusCode.ERROR, error or f"status {status}")
        self._span.end()


class OtelTracer:
    """Spans go out in batches from the SDK's own thread, so a slow collector never holds up a request."""

    def __init__(self, endpoint: str, exporter: Any = None) -> None:
        self._otel = otel = _Otel()
        self._provider = otel.sdk_trace.TracerProvider(
            resource=otel.resources.Resource.create({"service.name": "sgl-epd-router"})
        )
        if exporter is None:
            exporter = otel.otlp_exporter()(endpoint=endpoint, insecure=not endpoint.startswith("https://"))
        self._provider.add_span_processor(otel.export.BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("sgl_epd_router")

    def request(self, route: str, headers: Iterable[Header]) -> Span:
        carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in TRACE_HEADERS}
        context = self._otel.propagator.extract(carrier)
        kind = self._otel.trace.SpanKind.SERVER
        return OtelSpan(self._otel, self._tracer, self._tracer.start_span(route, context=context, kind=kind))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


class _Otel:
    """The modules of the extra, imported only when tracing is on."""

    def __init__(self) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk import resources
            from opentelemetry.sdk import trace as sdk_trace
            from opentelemetry.sdk.trace import export
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError("--enable-trace needs the tracing extra: pip install 'sgl-epd[tracing]'") from error
        self.trace: Any = trace
        self.resources: Any = resources
        self.sdk_trace: Any = sdk_trace
        self.export: Any = export
        self.propagator: Any = TraceContextTextMapPropagator()

    def otlp_exporter(self) -> Any:
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        except ImportError as error:
            raise ConfigError("--enable-trace needs the tracing extra: pip install 'sgl-epd[tracing]'") from error
        return OTLPSpanExporter


def make_tracer(enabled: bool, endpoint: str) -> Tracer | None:
    """None when tracing is off: a client's `traceparent` is then forwarded untouched with the other headers."""
    return OtelTracer(endpoint) if enabled else None
