"""Progress on the terminal: a live table where there is one, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sgl_epd.host.logs import tail
from sgl_epd.host.view import ProcessView, Reporter

_LINE_EVERY_S = 10.0
_REDRAW_EVERY_S = 0.25
_SHORT = 120
_LOOK_BACK = 10
_STYLE = {"ready": "green", "starting": "yellow", "waiting": "yellow", "unhealthy": "red", "given up": "bold red"}


def make_reporter(stream: TextIO | None = None) -> Reporter:
    stream = stream or sys.stdout
    return LiveReporter(Console(file=stream)) if stream.isatty() else LineReporter(stream)


class LineReporter:
    """One line a change of state, and a sign of life every ten seconds, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._seen: dict[str, str] = {}
        self._line_at = 0.0

    def tick(self, views: Sequence[ProcessView], elapsed_s: float) -> None:
        for view in views:
            if self._seen.get(view.name) != view.state:
                self._seen[view.name] = view.state
                self._print(f"[{elapsed_s:6.1f} s] {view.name:<10} {view.state:<9} {view.url}")
                self._line_at = elapsed_s
        if elapsed_s - self._line_at >= _LINE_EVERY_S:
            self._line_at = elapsed_s
            for view in views:
                if view.state != "ready":
                    self._print(f"[{elapsed_s:6.1f} s] {view.name:<10} still {view.state}: {_last_line(view)[:_SHORT]}")

    def ready(self, text: str) -> None:
        self._print(text)

    def event(self, text: str) -> None:
        self._print(f"{time.strftime('%H:%M:%S')} {text}")

    def close(self) -> None:
        return None

    def _print(self, text: str) -> None:
        # The reader of a pipe or the terminal may be gone; the host must still be ended in order.
        with contextlib.suppress(OSError, ValueError):
            print(text, file=self._stream, flush=True)


class LiveReporter:
    """A table that is redrawn in place while the host starts, then events as lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._drawn_at = float("-inf")

    def tick(self, views: Sequence[ProcessView], elapsed_s: float) -> None:
        if elapsed_s - self._drawn_at < _REDRAW_EVERY_S:
            return
        self._drawn_at = elapsed_s
        with contextlib.suppress(OSError):
            if self._live is None:
                # No refresh thread: this process makes others by fork.
                self._live = Live(console=self._console, auto_refresh=False, transient=False)
                self._live.start()
            self._live.update(self._draw(views, elapsed_s), refresh=True)

    def _draw(self, views: Sequence[ProcessView], elapsed_s: float) -> RenderableType:
        table = Table(box=None, pad_edge=False, show_header=False)
        for view in views:
            style = _STYLE.get(view.state, "")
            seconds = "" if view.state == "ready" else f"{view.age_s:.0f} s"
            line = "" if view.state == "ready" else _last_line(view)
            table.add_row(
                view.name,
                Text(view.state, style=style),
                seconds,
                Text(line, style="dim", overflow="ellipsis", no_wrap=True),
            )
        return Group(table, Text(f"{elapsed_s:.0f} s", style="dim"))

    def ready(self, text: str) -> None:
        self.close()
        with contextlib.suppress(OSError):
            self._console.print(escape(text), highlight=False, soft_wrap=True)

    def event(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._console.print(escape(f"{time.strftime('%H:%M:%S')} {text}"), highlight=False, soft_wrap=True)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._live is not None:
                self._live.stop()
        self._live = None


def _last_line(view: ProcessView) -> str:
    lines = tail(view.log_path, _LOOK_BACK)
    # An indented line (of a warning, of a stack) says little by itself.
    telling = [line for line in lines if not line[0].isspace()]
    return (telling or lines or ["(no output yet)"])[-1]
