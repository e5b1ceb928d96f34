"""Ids and positions from grids alone, for each Qwen-VL generation, on SGLang's own processor class; no weights, no
tokenizer, no server."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from sgl_epd.protocol.items import EmbeddingFormat, Modality
from sgl_epd.protocol.reference import Reference

if importlib.util.find_spec("sglang") is None:
    pytest.skip("SGLang is not installed here", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

START, END, IMAGE, VIDEO, TEXT = 3, 4, 6, 7, 10
PROMPT = [TEXT, START, IMAGE, END, TEXT, START, IMAGE, END, TEXT]


def ref(key: bytes, grid: tuple[int, int, int], num_tokens: int) -> Reference:
    return Reference(
        encoder="http://a:1", item_id="i", key=key * 16, modality=Modality.IMAGE, grid=grid, num_tokens=num_tokens,
        format=EmbeddingFormat(8, "bfloat16"),
    )  # fmt: skip


A, B = ref(b"a", (1, 4, 6), 6), ref(b"b", (1, 8, 4), 8)


@pytest.fixture(params=["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
def processor(request: pytest.FixtureRequest) -> Any:
    """What the layout of a prompt reads of a processor, without what would load files."""
    from sglang.srt.multimodal.processors.qwen_vl import QwenVLImageProcessor

    it = object.__new__(QwenVLImageProcessor)
    it.model_type = request.param
    it.hf_config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2))
    it._spatial_merge_size = it._tokens_per_second = 2
    it.IM_TOKEN_ID, it.VIDEO_TOKEN_ID, it.audio_token_id = IMAGE, VIDEO, None
    it.IM_START_TOKEN_ID, it.IM_END_TOKEN_ID = START, END
    it.vision_start_token_id, it.audio_start_token_id = START, None
    it.mm_tokens = SimpleNamespace(image_token_id=IMAGE, video_token_id=VIDEO, audio_token_id=None)
    return it


def test_the_layout(processor: Any) -> None:
    from sgl_epd_srt.native.inputs import build

    out = build(processor, PROMPT, [A, B], 1000)
    assert out.input_ids == [TEXT, START, *[IMAGE] * 6, END, TEXT, START, *[IMAGE] * 8, END, TEXT]
    assert [item.offsets for item in out.mm_items] == [[(2, 7)], [(11, 18)]]
    _, height, width = out.mrope_positions.tolist()
    assert height == [0, 1, *[2] * 3, *[3] * 3, 5, 6, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 13]
    assert width == [0, 1, *[2, 3, 4] * 2, 5, 6, 7, *[8, 9] * 4, 12, 13]
    assert out.mrope_position_delta.item() == -7
    assert all(item.feature is None and item.precomputed_embeddings is None for item in out.mm_items)


def test_ids_in_the_cache_follow_the_key(processor: Any) -> None:
    from sgl_epd_srt.native.inputs import build

    def padded(*refs: Reference) -> list[int]:
        return list(build(processor, PROMPT, refs, 1000).padded_input_ids)

    again, other = ref(b"a", A.grid, 6), ref(b"c", A.grid, 6)
    assert padded(A, B) == padded(again, B)
    assert padded(A, B)[:2] == padded(other, B)[:2] == [TEXT, START]
    assert not set(padded(A, B)[2:8]) & set(padded(other, B)[2:8])
    assert padded(A, A)[2:8] == padded(A, A)[11:17]


@pytest.mark.parametrize(
    ("refs", "max_tokens", "text"),
    [
        ([A], 1000, "do not fit the prompt"),
        ([A, B, A], 1000, "do not fit the prompt"),
        ([A, ref(b"b", B.grid, 9)], 1000, "do not fit the prompt"),
        ([ref(b"a", A.grid, 8), ref(b"b", B.grid, 6)], 1000, "does not make 8 tokens"),
        ([A, ref(b"b", (1, 2**31, 2**31), 8)], 1000, "does not make 8 tokens"),
        ([A, B], 14, "makes? 14 tokens"),
    ],
)
def test_references_that_do_not_fit(processor: Any, refs: list[Reference], max_tokens: int, text: str) -> None:
    from sgl_epd_srt.native.inputs import build

    with pytest.raises(ValueError, match=text):
        build(processor, PROMPT, refs, max_tokens)
