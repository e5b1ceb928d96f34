"""Descriptions of sub-byte number formats, read by SGLang's quantization layers while they are imported.

Field names are those of the real package, which took them from vLLM. Nothing on a CPU computes with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class ScalarType:
    """One number format: an integer (no exponent bits) or a small float, stored with `bias` added."""

    exponent: int
    mantissa: int
    signed: bool
    bias: int = 0

    @property
    def size_bits(self) -> int:
        return self.exponent + self.mantissa + int(self.signed)

    def is_floating_point(self) -> bool:
        return self.exponent != 0

    def is_integer(self) -> bool:
        return self.exponent == 0

    def is_signed(self) -> bool:
        return self.signed

    def has_bias(self) -> bool:
        return self.bias != 0


class scalar_types:
    int4: ClassVar[ScalarType] = ScalarType(0, 3, True)
    uint4: ClassVar[ScalarType] = ScalarType(0, 4, False)
    int8: ClassVar[ScalarType] = ScalarType(0, 7, True)
    uint8: ClassVar[ScalarType] = ScalarType(0, 8, False)
    uint4b8: ClassVar[ScalarType] = ScalarType(0, 4, False, 8)
    uint8b128: ClassVar[ScalarType] = ScalarType(0, 8, False, 128)
    float8_e4m3fn: ClassVar[ScalarType] = ScalarType(4, 3, True)
    float8_e5m2: ClassVar[ScalarType] = ScalarType(5, 2, True)
    float4_e2m1f: ClassVar[ScalarType] = ScalarType(2, 1, True)
