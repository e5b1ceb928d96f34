from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sgl_epd.errors import ConfigError
from sgl_epd.host.config import ServeConfig
from sgl_epd.host.layout import Layout, make_layout
from sgl_epd.host.spec import ProcessSpec
from sgl_epd.worker.flags import given, value

BASE = ServeConfig(model_path="m", encode=2, prefill=1, decode=1, port=30000, worker_port_base=30100)


def layout_of(config: ServeConfig, taken: tuple[int, ...] = (), gpus: tuple[str, ...] = ()) -> Layout:
    return make_layout(config, lambda port: port not in taken, gpus)


def named(layout: Layout, name: str) -> ProcessSpec:
    return next(spec for spec in layout.processes if spec.name == name)


def ports_in(layout: Layout) -> list[str]:
    flags = ("--port", "--disaggregation-bootstrap-port", "--encoder-bootstrap-port", "--nccl-port")
    return [port for spec in layout.processes for flag in flags if (port := value(spec.args, flag))]


def test_names_roles_and_logs() -> None:
    layout = layout_of(BASE)
    assert [(spec.name, spec.role) for spec in layout.processes] == [
        ("encode-0", "encode"),
        ("encode-1", "encode"),
        ("prefill-0", "prefill"),
        ("decode-0", "decode"),
        ("router", "router"),
    ]
    assert named(layout, "encode-1").log_path == Path("logs/encode-1.log")


def test_all_ports_are_disjoint_and_free() -> None:
    layout = layout_of(dataclasses.replace(BASE, prefill=3, decode=2), taken=(30101, 30104))
    ports = ports_in(layout)
    assert len(ports) == len(set(ports)) == 2 + 3 * 4 + 2 * 2 + 1
    assert not {"30101", "30104"} & set(ports)
    assert layout.notes == ("port 30101 is taken, used the next one", "port 30104 is taken, used the next one")


def test_the_prefill_worker_and_the_router_agree() -> None:
    layout = layout_of(BASE)
    prefill, router = named(layout, "prefill-0"), named(layout, "router").args
    at = router.index("--prefill")
    assert router[at + 1 : at + 4] == (
        prefill.url,
        value(prefill.args, "--disaggregation-bootstrap-port"),
        value(prefill.args, "--encoder-bootstrap-port"),
    )
    at = prefill.args.index("--encoder-urls")
    encoders = [named(layout, "encode-0").url, named(layout, "encode-1").url]
    assert list(prefill.args[at + 1 : at + 3]) == encoders
    assert [router[i + 1] for i, arg in enumerate(router) if arg == "--encode"] == encoders
    assert "--epd-disaggregation" in router
    assert not given(named(layout, "decode-0").args, "--encoder-urls")


def test_without_encoders_it_is_prefill_and_decode() -> None:
    layout = layout_of(dataclasses.replace(BASE, encode=0))
    assert "--pd-disaggregation" in named(layout, "router").args
    assert not given(named(layout, "prefill-0").args, "--encoder-urls")


def test_mixed_workers() -> None:
    layout = layout_of(ServeConfig(model_path="m", mixed=2))
    router = named(layout, "router").args
    at = router.index("--worker-urls")
    assert router[at + 1 : at + 3] == (named(layout, "mixed-0").url, named(layout, "mixed-1").url)


def test_flags_of_a_role_come_after_those_of_all_workers() -> None:
    config = dataclasses.replace(BASE, worker_args=("--tp", "1"), decode_args=("--tp", "2"), router_args=("--x", "1"))
    layout = layout_of(config)
    assert value(named(layout, "decode-0").args, "--tp") == "2"
    assert value(named(layout, "prefill-0").args, "--tp") == "1"
    assert value(named(layout, "router").args, "--x") == "1"


def test_the_users_router_flags_win() -> None:
    layout = layout_of(dataclasses.replace(BASE, router_args=("--health-check-interval-secs", "60")))
    assert named(layout, "router").args.count("--health-check-interval-secs") == 1
    assert value(named(layout, "router").args, "--health-check-interval-secs") == "60"


def test_no_process_group_port_where_sglang_needs_several() -> None:
    layout = layout_of(dataclasses.replace(BASE, decode_args=("--dp-size", "2")))
    assert not given(named(layout, "decode-0").args, "--nccl-port")
    assert given(named(layout, "prefill-0").args, "--nccl-port")


def test_gpus_are_shared_out_in_order() -> None:
    layout = layout_of(dataclasses.replace(BASE, decode_args=("--tp", "2")), gpus=("0", "1", "2", "3", "4"))
    seen = [spec.env["CUDA_VISIBLE_DEVICES"] for spec in layout.workers]
    assert seen == ["0", "1", "2", "3,4"]
    assert layout.notes == ()


def test_too_few_gpus_are_shared_and_said_so() -> None:
    layout = layout_of(BASE, gpus=("0", "1"))
    assert [spec.env["CUDA_VISIBLE_DEVICES"] for spec in layout.workers] == ["0", "1", "0", "1"]
    assert layout.notes == (
        "GPU 0 is shared by encode-0, prefill-0: leave room with --mem-fraction-static",
        "GPU 1 is shared by encode-1, decode-0: leave room with --mem-fraction-static",
    )


def test_one_worker_may_not_need_more_gpus_than_there_are() -> None:
    with pytest.raises(ConfigError, match="a worker needs 4 GPUs and this machine shows 2"):
        layout_of(dataclasses.replace(BASE, decode_args=("--tp=4",)), gpus=("0", "1"))


def test_named_devices() -> None:
    layout = layout_of(dataclasses.replace(BASE, devices=("3", "3", "0,1", "2")))
    assert [spec.env["CUDA_VISIBLE_DEVICES"] for spec in layout.workers] == ["3", "3", "0,1", "2"]


def test_no_gpus_for_cpu_workers() -> None:
    layout = layout_of(dataclasses.replace(BASE, worker_args=("--device", "cpu")), gpus=("0",))
    assert [dict(spec.env) for spec in layout.workers] == [{}] * 4


@pytest.mark.parametrize(
    ("flag", "instead"),
    [("--port", "--worker-port-base"), ("--encoder-urls", "--encode N"), ("--model", "--model-path")],
)
def test_flags_that_serve_decides_are_refused(flag: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=f"{flag} among the worker flags: .* its own {instead}"):
        layout_of(dataclasses.replace(BASE, prefill_args=(flag, "1")))


def test_the_routers_port_must_be_free() -> None:
    with pytest.raises(ConfigError, match=r"port 30000 \(HTTP of router\) is taken by .*; choose another with --port"):
        layout_of(BASE, taken=(30000,))


def test_workers_never_get_the_routers_port() -> None:
    layout = layout_of(dataclasses.replace(BASE, port=30100))
    assert named(layout, "encode-0").url == "http://127.0.0.1:30101"


def test_ports_can_run_out() -> None:
    with pytest.raises(ConfigError, match="no free port from 65530 upwards"):
        layout_of(dataclasses.replace(BASE, worker_port_base=65530))


def test_a_router_that_listens_everywhere_is_asked_on_loopback() -> None:
    assert named(layout_of(dataclasses.replace(BASE, host="0.0.0.0")), "router").url == "http://127.0.0.1:30000"


def test_shell_line_can_be_pasted() -> None:
    spec = dataclasses.replace(
        named(layout_of(BASE), "encode-0"), command=("a b",), args=("--c", "$d"), env={"E": "f g"}
    )
    assert spec.shell_line() == "E='f g' 'a b' --c '$d'"
