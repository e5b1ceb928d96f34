"""Stands in for a worker or for the router on real processes: answers /health and /readiness, and can misbehave.

Takes the flags that `serve` gives to both and ignores those it does not know, as far as the host is concerned.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import shared_memory

SLEEPER = "import time\nwhile True: time.sleep(60)"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--role", default="router")
    parser.add_argument("--port", type=int, required=True)
    for pool in ("--encode", "--prefill", "--decode"):
        parser.add_argument(pool, nargs="+", action="append", default=[])
    parser.add_argument("--fake-mark", required=True, help="found again in the process list by the tests")
    parser.add_argument("--fake-ready-after", type=float, default=0.0)
    parser.add_argument("--fake-die-after", type=float, help="seconds; also on every restart")
    parser.add_argument("--fake-exit", type=int, default=1)
    parser.add_argument("--fake-die-once", help="file that makes all but the first death not happen")
    parser.add_argument("--fake-ignore-term", action="store_true")
    parser.add_argument("--fake-drain", type=float, default=0.0, help="seconds that SIGTERM takes")
    parser.add_argument("--fake-children", action="store_true", help="one in the session, one that leaves it")
    parser.add_argument("--fake-shm", help="a segment that is not unlinked")
    parser.add_argument("--fake-hang-file", help="while this file exists, health checks are not answered")
    return parser.parse_known_args()[0]


class Handler(BaseHTTPRequestHandler):
    ready_at = 0.0
    workers: tuple[str, ...] = ()
    hang_file: str | None = None

    def do_GET(self) -> None:
        while self.hang_file and os.path.exists(self.hang_file):
            time.sleep(0.05)
        if time.monotonic() < self.ready_at:
            self._reply(503, b"{}")
        elif self.path == "/readiness":
            healthy = sum(map(_healthy, self.workers))
            body = b'{"healthy_workers": %d, "total_workers": %d}' % (healthy, len(self.workers))
            self._reply(200 if healthy else 503, body)
        else:
            self._reply(200, b"{}")

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return None


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=1) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def start_children(mark: str) -> None:
    command = [sys.executable, "-S", "-c", SLEEPER, mark]
    subprocess.Popen(command)
    subprocess.Popen(command, start_new_session=True)


def die_later(args: argparse.Namespace) -> None:
    if args.fake_die_once:
        if os.path.exists(args.fake_die_once):
            return
        with open(args.fake_die_once, "w"):
            pass
    print("fake: something terrible happened", flush=True)
    # Not sys.exit: a crash cleans nothing up.
    threading.Timer(args.fake_die_after, os._exit, [args.fake_exit]).start()


def main() -> None:
    args = parse()
    print(f"fake {args.role} on {args.port}, TMPDIR {os.environ.get('TMPDIR')}", flush=True)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if args.fake_ignore_term else lambda *_: ended.set())
    if args.fake_children:
        start_children(args.fake_mark)
    if args.fake_shm:
        segment = shared_memory.SharedMemory(args.fake_shm, create=True, size=4096)
        # As SGLang's own files there: no resource tracker looks after it.
        from multiprocessing import resource_tracker

        resource_tracker.unregister(segment._name, "shared_memory")
    if args.fake_die_after is not None:
        if args.fake_die_after == 0:
            print("fake: OSError: [Errno 98] Address already in use", flush=True)
            os._exit(args.fake_exit)
        die_later(args)
    Handler.ready_at = time.monotonic() + args.fake_ready_after
    Handler.hang_file = args.fake_hang_file
    Handler.workers = tuple(entry[0] for pool in (args.encode, args.prefill, args.decode) for entry in pool)
    server = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not ended.wait(1.0):
        pass
    print(f"fake {args.role} ends", flush=True)
    time.sleep(args.fake_drain)
    os._exit(0)


if __name__ == "__main__":
    main()
