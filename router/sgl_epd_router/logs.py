"""Log lines as text or JSON, without secrets.

Code here never logs bodies, headers or keys. The filter is the second line of defence: it blanks what looks like a key
or like base64 data that a library or an exception put into a message.
"""

from __future__ import annotations

import logging
import logging.handlers
import re
import sys
import time
from pathlib import Path

import msgspec

from sgl_epd.net.exchange import Exchange

_access = logging.getLogger("sgl_epd_router.access")
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}
_SECRETS = re.compile(
    r"(?P<key>(?:bearer\s+|api[-_]?key['\"]?\s*[=:]\s*['\"]?|authorization['\"]?\s*[=:]\s*['\"]?(?:bearer\s+)?))[^\s'\",}]+"
    r"|(?P<data>data:[\w/+.-]+;base64,)[A-Za-z0-9+/=]*"
    r"|[A-Za-z0-9+/]{200,}={0,2}",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Blank keys and base64 in a message."""
    return _SECRETS.sub(lambda match: (match["key"] or match["data"] or "") + "[redacted]", text)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, and what was passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": redact(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD and not name.startswith("_"):
                entry[name] = redact(value) if isinstance(value, str) else value
        if record.exc_info:
            entry["exception"] = redact(self.formatException(record.exc_info))
        return msgspec.json.encode(entry, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def setup_logging(level: str = "info", log_format: str = "text", log_dir: str | None = None) -> None:
    """Send all logs to standard error, and to `log_dir`/router.log if given."""
    formatter: logging.Formatter = JsonFormatter() if log_format == "json" else TextFormatter()
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if log_dir:
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        path = Path(log_dir) / "router.log"
        handlers.append(logging.handlers.WatchedFileHandler(path, encoding="utf-8"))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    root.setLevel("WARNING" if level == "warn" else level.upper())


def log_access(exchange: Exchange, duration_s: float) -> None:
    """One line a request, with `--access-log`: no query, no headers, no body."""
    request_id = (exchange.header(b"x-request-id") or b"").decode("latin-1")
    fields = {"status": exchange.status, "duration_ms": round(duration_s * 1e3, 1), "request_id": request_id}
    line = "%s %s %d %.1f ms"
    _access.info(line, exchange.method, exchange.path, exchange.status, duration_s * 1e3, extra=fields)
