"""A worker registers, keeps its registration alive, and registers anew with a router that forgot it."""

from __future__ import annotations

from typing import Any

import pytest

from sgl_epd.errors import ConfigError
from sgl_epd.launch_server import build_parser, registration
from sgl_epd.worker.plan import Role, WorkerPlan
from sgl_epd.worker.register import TTL_S, RefusedError, Registrar, Registration


class Router:
    """Answers as `POST /workers` and `PUT /workers/{id}/heartbeat` do."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.down = False
        self.refuse = 0

    def call(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if self.down:
            raise ConnectionRefusedError("down")
        if method == "POST" and self.refuse:
            return self.refuse, {"error": {"message": "no"}}
        if method == "POST":
            self.known["w1"] = body
            return 202, {"worker_id": "w1"}
        worker_id = path.split("/")[2]
        if worker_id not in self.known:
            return 404, {"error": {"message": "unknown"}}
        if method == "DELETE":
            del self.known[worker_id]
            return 202, {}
        return 200, {}


def test_registers_once_and_beats() -> None:
    router = Router()
    registrar = Registrar({"url": "http://w"}, router.call)
    assert registrar.tick() == "registered as w1"
    assert registrar.tick() == ""
    assert router.known == {"w1": {"url": "http://w", "heartbeat_ttl_secs": TTL_S}}


def test_comes_back_after_a_router_restart() -> None:
    router = Router()
    registrar = Registrar({"url": "http://w"}, router.call)
    registrar.tick()
    router.down = True
    assert "cannot reach" in registrar.tick()
    router.down, router.known = False, {}
    assert registrar.tick() == "registered as w1"
    assert "w1" in router.known


def test_waits_for_a_router_that_is_not_up_but_not_for_one_that_refuses() -> None:
    router = Router()
    router.down = True
    registrar = Registrar({"url": "http://w"}, router.call)
    assert "cannot reach" in registrar.tick()
    router.down, router.refuse = False, 503
    assert registrar.tick() == "not registered yet (503): no"
    router.refuse = 401
    with pytest.raises(RefusedError, match="401"):
        registrar.tick()


def test_signs_off() -> None:
    router = Router()
    registrar = Registrar({"url": "http://w"}, router.call)
    registrar.leave()
    registrar.tick()
    registrar.leave()
    assert router.known == {}


def test_what_the_routers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGL_EPD_ADMIN_API_KEY", "admin")
    own = build_parser().parse_args(["--role", "prefill", "--register", "http://a:1", "--register", "http://b:2"])
    argv = ("--host", "10.0.0.7", "--api-key", "worker", "--encoder-bootstrap-port", "8997")
    found = registration(own, WorkerPlan(Role.PREFILL, argv, {}, 31000, 8998))
    assert found == Registration(
        ("http://a:1", "http://b:2"),
        {
            "url": "http://10.0.0.7:31000",
            "worker_type": "prefill",
            "api_key": "worker",
            "bootstrap_port": 8998,
            "encoder_bootstrap_port": 8997,
        },
        "admin",
    )
    assert registration(build_parser().parse_args(["--role", "mixed"]), WorkerPlan(Role.MIXED, (), {}, 1, None)) is None


def test_mistakes_are_explained() -> None:
    own = build_parser().parse_args(["--role", "mixed", "--register", "router:30000"])
    plan = WorkerPlan(Role.MIXED, ("--host", "127.0.0.1"), {}, 31000, None)
    with pytest.raises(ConfigError, match="give the router's URL"):
        registration(own, plan)
    own = build_parser().parse_args(["--role", "mixed", "--register", "http://router:30000"])
    with pytest.raises(ConfigError, match="--advertise-url"):
        registration(own, WorkerPlan(Role.MIXED, ("--host", "0.0.0.0"), {}, 31000, None))
