"""The quick training layout computes what stock transformers computes, and labels what was drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sgl_epd.demo.scene import Item, Scene

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from sgl_epd_srt.demo_training.batches import (  # noqa: E402
    ConversationBatcher,
    cell_labels,
    grid_of,
    patchify,
    picture_batch,
    rope_positions,
)
from sgl_epd_srt.demo_training.conversations import random_conversation, random_grid, random_picture  # noqa: E402
from sgl_epd_srt.demo_training.network import TrainingNetwork, build_model  # noqa: E402
from sgl_epd_srt.demo_training.recipe import IMAGE_MEAN, IMAGE_STD, Recipe  # noqa: E402
from sgl_epd_srt.demo_training.tokenizer import build_tokenizer  # noqa: E402

RECIPE = Recipe(vocab_size=300, vision_layers=2, layers=2, batch_images=12, crowds=2)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(["what is in the image? first image: a red circle"], RECIPE.vocab_size)


@pytest.fixture(scope="module")
def network(tokenizer: Any) -> TrainingNetwork:
    return TrainingNetwork(build_model(RECIPE, tokenizer), RECIPE)


def test_positions_follow_qwen2_vl(tokenizer: Any, network: TrainingNetwork) -> None:
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    ids = [9] * 4 + [pad] * 12 + [9] * 2 + [pad] * 9 + [9] * 3
    kinds = torch.tensor([[int(i == pad) for i in ids]])
    grids = torch.tensor([[1, 6, 8], [1, 6, 6]])
    wanted, _ = network.model.model.get_rope_index(torch.tensor([ids]), kinds, image_grid_thw=grids)
    ours = rope_positions(len(ids), [(4, (4, 3)), (18, (3, 3))])
    assert ours.tolist() == wanted[:, 0].tolist()


def test_patches_follow_the_image_processor() -> None:
    from transformers import Qwen2VLImageProcessor

    image, _ = random_picture(np.random.default_rng(5), (5, 3))
    stock = Qwen2VLImageProcessor(min_pixels=7056, max_pixels=50176)(images=[image], return_tensors="pt")
    assert stock["image_grid_thw"].tolist() == [[1, 6, 10]]
    pixels = stock["pixel_values"].reshape(-1, 3, 2, 196)
    assert torch.equal(pixels[:, :, 0], pixels[:, :, 1]), "a picture is the same frame twice"
    mean, std = (torch.tensor(v).view(1, 3, 1) for v in (IMAGE_MEAN, IMAGE_STD))
    levels = (pixels[:, :, 0] * std + mean) * 255
    ours = torch.from_numpy(patchify(image, grid_of(image)).copy()).view(-1, 3, 196)
    assert (levels - ours).abs().max() < 3, "resizing may round differently, by no more than a level or two"


def test_quick_forward_equals_the_stock_one(
    tokenizer: Any, network: TrainingNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same cells and same answer loss as the stock forward, for rows of different pictures and lengths."""
    batch = ConversationBatcher(tokenizer, RECIPE).draw(np.random.default_rng(3), "mixed")
    assert batch.ids is not None and batch.targets is not None and batch.segments is not None
    with torch.no_grad():
        cells = network.see(batch)
        loss, _ = network.answer_loss(cells, batch)
        pixels = (torch.from_numpy(batch.patches).float() - network.mean) / network.std
        pixels = pixels.view(-1, 3, 1, 196).expand(-1, 3, 2, 196).reshape(len(pixels), -1)
        grids = torch.tensor([[1, 2 * d, 2 * a] for n, a, d in batch.groups for _ in range(n)])
        stock_cells = network.model.model.visual(pixels, grid_thw=grids).pooler_output
        assert torch.allclose(cells, stock_cells, atol=1e-4)
        language = network.model.model.language_model
        monkeypatch.setattr(language.config, "_attn_implementation", "sdpa")
        total = count = 0.0
        places, segments = torch.from_numpy(batch.image_slots), torch.from_numpy(batch.segments)
        embeds = language.embed_tokens(torch.from_numpy(batch.ids))
        embeds.view(-1, RECIPE.hidden)[places[places >= 0]] = stock_cells[places >= 0]
        for segment in range(1, int(segments.max()) + 1):  # each conversation alone, unpacked
            row, at = (segments == segment).nonzero(as_tuple=True)
            positions = torch.from_numpy(batch.positions)[:, row, at][:, None]
            out = language(inputs_embeds=embeds[row, at][None], position_ids=positions)
            logits, targets = network.model.lm_head(out.last_hidden_state)[0], torch.from_numpy(batch.targets)[row, at]
            total += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
            count += int((targets >= 0).sum())
    assert loss.item() == pytest.approx(total / count, rel=1e-4)
    assert segments.shape[0] < segments.max(), "packed: fewer rows than conversations"


def test_targets_are_the_answers_alone(tokenizer: Any) -> None:
    batcher = ConversationBatcher(tokenizer, RECIPE)
    conversation = random_conversation(np.random.default_rng(8), [(3, 3)], 1)
    ids, targets, _ = batcher._tokens(conversation)
    answers = [t.parts[0] for t in conversation.turns if t.role == "assistant"]
    learnt = tokenizer.decode([t for t in targets if t >= 0])
    assert learnt == "".join(f"{answer}<|im_end|>" for answer in answers)
    assert all(ids[i + 1] == t for i, t in enumerate(targets) if t >= 0)


def test_cell_labels_mark_the_centres() -> None:
    scene = Scene("crowd", (Item("7", "", 0.1, 0.9), Item("square", "green", 0.9, 0.1)))
    labels = cell_labels(scene, (4, 3)).reshape(3, 4, -1)
    assert [tuple(int(n) for n in at) for at in np.argwhere(labels)] == [(0, 3, 10 + 6 + 1), (2, 0, 7)]


def test_batches_depend_on_the_seed_alone() -> None:
    one, two = (picture_batch(np.random.default_rng([1, 7]), 6) for _ in range(2))
    assert np.array_equal(one.patches, two.patches)
    assert one.groups == two.groups


@pytest.mark.parametrize("seed", range(30))
def test_a_training_picture_has_the_grid_it_was_drawn_for(seed: int) -> None:
    rng = np.random.default_rng(seed)
    grid = random_grid(rng)
    image, _ = random_picture(rng, grid)
    assert grid_of(image) == grid
