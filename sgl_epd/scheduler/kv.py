"""KV cache by counts: how many blocks are free and who holds how many. Where they lie is the engine's business."""

from __future__ import annotations

from sgl_epd.errors import ConfigError


class KVBlocks:
    """Blocks of `block_tokens` tokens. SGLang calls them pages (`--page-size`)."""

    def __init__(self, tokens: int, block_tokens: int = 1) -> None:
        if tokens < block_tokens or block_tokens < 1:
            raise ConfigError(f"a KV cache of {tokens} tokens in blocks of {block_tokens} holds nothing")
        self.block_tokens = block_tokens
        self.total = tokens // block_tokens
        self.free = self.total

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def take(self, blocks: int) -> bool:
        """False, and nothing taken, if there are not so many."""
        if blocks > self.free:
            return False
        self.free -= blocks
        return True

    def give(self, blocks: int) -> None:
        """Raises `ValueError` if more come back than were taken."""
        if blocks < 0 or self.free + blocks > self.total:
            raise ValueError(f"{blocks} blocks come back, {self.total - self.free} are out")
        self.free += blocks

    @property
    def used_share(self) -> float:
        return 1.0 - self.free / self.total
