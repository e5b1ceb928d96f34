"""Blocks: none lost, none given twice, one run where one run fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_epd.cache.block_pool import BlockPool
from sgl_epd.cache.layout import BlockLayout, MMCacheConfig, Run
from sgl_epd.errors import ConfigError


def blocks(runs: tuple[Run, ...]) -> set[int]:
    return {block for run in runs for block in range(run.start, run.start + run.length)}


def test_allocates_one_run_from_the_smallest_gap_that_fits() -> None:
    pool = BlockPool(20)
    held = [pool.allocate(4) for _ in range(5)]
    pool.release(held[1])
    pool.release(held[3])
    pool.release(held[4])
    assert pool.allocate(3) == (Run(4, 3),)
    assert pool.allocate(8) == (Run(12, 8),)


def test_takes_several_runs_only_when_no_single_one_fits() -> None:
    pool = BlockPool(10)
    held = [pool.allocate(2) for _ in range(5)]
    for index in (0, 2, 4):
        pool.release(held[index])
    runs = pool.allocate(5)
    assert [run.length for run in runs] == [2, 2, 1]
    assert blocks(runs) <= {0, 1, 4, 5, 8, 9}
    assert pool.free_blocks == 1


def test_released_neighbours_become_one_run_again() -> None:
    pool = BlockPool(6)
    a, b, c = (pool.allocate(2) for _ in range(3))
    for runs in (a, c, b):
        pool.release(runs)
    assert pool.allocate(6) == (Run(0, 6),)


@pytest.mark.parametrize("run", [Run(0, 2), Run(1, 1), Run(1, 4), Run(5, 1), Run(9, 2), Run(-1, 1), Run(3, 0)])
def test_release_of_what_is_not_held_is_refused(run: Run) -> None:
    pool = BlockPool(10)
    pool.allocate(10)
    pool.release((Run(0, 2), Run(5, 2)))
    with pytest.raises(ValueError, match="not all in use"):
        pool.release((run,))


@pytest.mark.parametrize("count", [0, -1, 6])
def test_cannot_allocate_what_is_not_there(count: int) -> None:
    with pytest.raises(ValueError, match="free ones"):
        BlockPool(5).allocate(count)


def test_check_finds_lost_and_doubly_held_blocks() -> None:
    pool = BlockPool(6)
    runs = pool.allocate(3)
    pool.check(runs)
    with pytest.raises(ValueError, match="block 0 is lost"):
        pool.check(())
    with pytest.raises(ValueError, match="block 0 is held twice"):
        pool.check((*runs, *runs))


@given(st.data())
def test_any_sequence_keeps_every_block_free_or_held_once(data: st.DataObject) -> None:
    pool = BlockPool(data.draw(st.integers(1, 40)))
    held: list[tuple[Run, ...]] = []
    for _ in range(data.draw(st.integers(0, 60))):
        if held and data.draw(st.booleans()):
            pool.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
        elif pool.free_blocks:
            count = data.draw(st.integers(1, pool.free_blocks))
            runs = pool.allocate(count)
            assert len(blocks(runs)) == sum(run.length for run in runs) == count
            held.append(runs)
        pool.check([run for runs in held for run in runs])
        assert pool.free_blocks == pool.num_blocks - sum(len(blocks(runs)) for runs in held)


def test_layout_of_a_partly_used_last_block() -> None:
    layout = BlockLayout(num_blocks=8, rows_per_block=16, row_bytes=10)
    assert layout.blocks_for(1) == 1
    assert layout.blocks_for(16) == 1
    assert layout.blocks_for(17) == 2
    assert layout.ranges((Run(2, 1), Run(5, 2)), rows=33) == ((320, 160), (800, 170))


@pytest.mark.parametrize("rows", [32, 49])
def test_layout_refuses_rows_that_do_not_match_the_blocks(rows: int) -> None:
    layout = BlockLayout(num_blocks=8, rows_per_block=16, row_bytes=10)
    with pytest.raises(ValueError, match="do not fill"):
        layout.ranges((Run(0, 2), Run(4, 1)), rows)


def test_size_flag_gives_the_blocks_that_fit() -> None:
    layout = MMCacheConfig(mm_cache_size_mb=1, mm_block_rows=16).layout(row_bytes=7168)
    assert layout.num_blocks == 9
    assert layout.nbytes == 9 * 16 * 7168 <= 2**20


def test_a_region_too_small_for_one_block_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="--mm-cache-size-mb 1 holds no block"):
        MMCacheConfig(mm_cache_size_mb=1, mm_block_rows=1024).layout(row_bytes=4096)
    with pytest.raises(ConfigError, match="must be at least 1"):
        MMCacheConfig(mm_cache_size_mb=0)
