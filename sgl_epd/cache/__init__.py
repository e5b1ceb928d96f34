"""Blocks for embeddings: who holds which, who waits for some, what can be found again by its content.

`block_pool` knows which blocks are free, `mm_block_manager` who has the others and in what state, `mm_cache` what an
item is called and whether it paid to keep it. All are plain objects that take `now`; none touches the memory itself.
"""
