"""Accelerators: the few figures of a data sheet that memory and roofline need."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sgl_epd.errors import ConfigError
from sgl_epd.planner import datafile


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator. `flops` are dense FP16/BF16 per second, bandwidths are bytes per second in one direction."""

    name: str
    memory_bytes: int
    """As the driver reports it in total."""
    flops: float
    memory_bandwidth: float
    link_bandwidth: float
    """To a neighbour in the same host: NVLink, or PCIe where there is none."""
    source: str

    def __post_init__(self) -> None:
        for field in ("memory_bytes", "flops", "memory_bandwidth", "link_bandwidth"):
            if getattr(self, field) <= 0:
                raise ValueError(f"{field} must be above 0")


def load_device(name: str) -> Device:
    """A shipped device by its name (case and `_` do not matter), or a JSON file with these fields.

    Raises `ConfigError` for a name that is neither.
    """
    if name.endswith(".json"):
        return datafile.read(Path(name), Device)
    devices = shipped_devices()
    found = devices.get(name.lower().replace("_", "-"))
    if found is None:
        raise ConfigError(
            f"unknown device {name!r}; known are {', '.join(devices)}, or give a JSON file with the fields "
            f"{', '.join(Device.__struct_fields__)}"
        )
    return found


def shipped_devices() -> dict[str, Device]:
    return {device.name: device for device in datafile.read(datafile.shipped("devices.json"), list[Device])}
