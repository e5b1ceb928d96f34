"""How one region of memory is cut into blocks of embedding rows, and the flags that say how large it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from sgl_epd.config import option
from sgl_epd.errors import ConfigError

MIB = 2**20


class Run(NamedTuple):
    """`length` neighbouring blocks from block `start` on."""

    start: int
    length: int


@dataclasses.dataclass(frozen=True)
class MMCacheConfig:
    """Flags of the embedding cache of an encode or prefill worker."""

    mm_cache_size_mb: int = option(
        2048, "Memory for embeddings, in MiB: on their way and kept for later requests", group="embedding cache"
    )
    mm_block_rows: int = option(16, "Embedding rows (tokens) in a block", group="embedding cache")

    def __post_init__(self) -> None:
        if self.mm_cache_size_mb < 1:
            raise ConfigError(f"--mm-cache-size-mb must be at least 1, not {self.mm_cache_size_mb}")
        if self.mm_block_rows < 1:
            raise ConfigError(f"--mm-block-rows must be at least 1, not {self.mm_block_rows}")

    def layout(self, row_bytes: int) -> BlockLayout:
        """The blocks that fit. Raises `ConfigError` if not one does."""
        block_bytes = self.mm_block_rows * row_bytes
        num_blocks = self.mm_cache_size_mb * MIB // block_bytes
        if num_blocks < 1:
            raise ConfigError(
                f"--mm-cache-size-mb {self.mm_cache_size_mb} holds no block: {self.mm_block_rows} rows of "
                f"{row_bytes} bytes are {block_bytes} bytes; raise it or lower --mm-block-rows"
            )
        return BlockLayout(num_blocks, self.mm_block_rows, row_bytes)


@dataclasses.dataclass(frozen=True)
class BlockLayout:
    """Block `i` lies at byte `i * block_bytes` of the region."""

    num_blocks: int
    rows_per_block: int
    row_bytes: int

    @property
    def block_bytes(self) -> int:
        return self.rows_per_block * self.row_bytes

    @property
    def nbytes(self) -> int:
        return self.num_blocks * self.block_bytes

    def blocks_for(self, rows: int) -> int:
        return -(-rows // self.rows_per_block)

    def ranges(self, runs: Sequence[Run], rows: int) -> tuple[tuple[int, int], ...]:
        """(byte offset, length) of `rows` rows in the blocks of `runs`, in order; the last block may be part used."""
        left = rows * self.row_bytes
        ranges = []
        for run in runs:
            length = min(run.length * self.block_bytes, left)
            ranges.append((run.start * self.block_bytes, length))
            left -= length
        if left or any(length <= 0 for _, length in ranges):
            raise ValueError(f"{rows} rows do not fill the runs {list(runs)}")
        return tuple(ranges)
