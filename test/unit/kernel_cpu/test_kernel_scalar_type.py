from __future__ import annotations

import pytest

pytest.importorskip("torch")

from sgl_kernel.scalar_type import scalar_types


@pytest.mark.parametrize(
    ("name", "bits", "bias", "signed", "floating"),
    [
        ("int4", 4, 0, True, False),
        ("uint4", 4, 0, False, False),
        ("uint4b8", 4, 8, False, False),
        ("int8", 8, 0, True, False),
        ("uint8", 8, 0, False, False),
        ("uint8b128", 8, 128, False, False),
        ("float4_e2m1f", 4, 0, True, True),
        ("float8_e4m3fn", 8, 0, True, True),
        ("float8_e5m2", 8, 0, True, True),
    ],
)
def test_formats(name: str, bits: int, bias: int, signed: bool, floating: bool) -> None:
    kind = getattr(scalar_types, name)
    assert (kind.size_bits, kind.bias, kind.is_signed(), kind.is_floating_point()) == (bits, bias, signed, floating)
    assert kind.has_bias() == (bias != 0)
    assert kind.is_integer() != floating


def test_formats_are_distinct() -> None:
    kinds = [value for name, value in vars(scalar_types).items() if not name.startswith("_")]
    assert len(set(kinds)) == len(kinds) == 9
