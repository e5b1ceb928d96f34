"""The quick training layout computes what stock transformers computes, and labels what was drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sgl_epd.demo.scene import Item, Scene

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from sgl_epd_srt.demo_training.batches import (  # noqa: E402
    Batch,
    ConversationBatcher,
    cell_labels,
    grid_of,
    patchify,
    picture_batch,
)
from sgl_epd_srt.demo_training.conversations import (  # noqa: E402
    Conversation,
    random_conversation,
    random_grid,
    random_picture,
)
from sgl_epd_srt.demo_training.network import TrainingNetwork, build_model  # noqa: E402
from sgl_epd_srt.demo_training.recipe import IMAGE_MEAN, IMAGE_STD, Recipe  # noqa: E402
from sgl_epd_srt.demo_training.tokenizer import build_tokenizer  # noqa: E402
from sgl_epd_srt.demo_training.tokens import Tokens  # noqa: E402

RECIPE = Recipe(vocab_size=300, vision_layers=2, layers=2, batch_images=12, crowds=2)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(["what is in the image? first image: a red circle"], RECIPE.vocab_size)


@pytest.fixture(scope="module")
def network(tokenizer: Any) -> TrainingNetwork:
    return TrainingNetwork(build_model(RECIPE, tokenizer), RECIPE)


def test_positions_follow_qwen2_vl(tokenizer: Any, network: TrainingNetwork) -> None:
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    tokens = Tokens(tokenizer, pad)
    for text, grid in (("look: ", (4, 3)), (" and ", (3, 5)), ("?", None)):
        tokens.add(text)
        if grid:
            tokens.add_picture(grid)
    kinds = torch.tensor([[int(i == pad) for i in tokens.ids]])
    grids = torch.tensor([[1, 6, 8], [1, 10, 6]])
    wanted, _ = network.model.model.get_rope_index(torch.tensor([tokens.ids]), kinds, image_grid_thw=grids)
    assert np.asarray(tokens.positions).T.tolist() == wanted[:, 0].tolist()


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


def test_quick_vision_equals_the_stock_one(network: TrainingNetwork) -> None:
    batch = picture_batch(np.random.default_rng(4), 7)
    assert len(batch.groups) > 1
    with torch.no_grad():
        assert torch.allclose(network.see(batch), stock_cells(network, batch), atol=1e-4)


def test_quick_answer_loss_equals_the_stock_one(
    tokenizer: Any, network: TrainingNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed and branched, the loss is that of each branch read alone by stock transformers."""
    batch = ConversationBatcher(tokenizer, RECIPE).draw(np.random.default_rng(3), "mixed")
    words = batch.words
    assert words is not None
    with torch.no_grad():
        cells = stock_cells(network, batch)
        loss, _ = network.answer_loss(cells, words)
        language = network.model.model.language_model
        monkeypatch.setattr(language.config, "_attn_implementation", "sdpa")
        places = torch.from_numpy(words.image_slots)
        embeds = language.embed_tokens(torch.from_numpy(words.ids))
        embeds.view(-1, RECIPE.hidden)[places[places >= 0]] = cells[places >= 0]
        total = weight = 0.0
        for number in range(1, int(words.conversations.max()) + 1):
            row = int(np.argwhere(words.conversations == number)[0, 0])
            mine = words.conversations[row] == number
            for branch in range(1, int(words.branches[row][mine].max()) + 1):
                at = np.flatnonzero(mine & np.isin(words.branches[row], (0, branch)))
                positions = torch.from_numpy(words.positions[:, row, at])[:, None]
                out = language(inputs_embeds=embeds[row, at][None], position_ids=positions)
                logits = network.model.lm_head(out.last_hidden_state)[0]
                targets, weights = (torch.from_numpy(a[row, at]) for a in (words.targets, words.weights))
                losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
                total += float((losses * weights).sum())
                weight += float(weights.sum())
    assert words.branches.max() > 1
    assert words.ids.shape[0] < words.conversations.max(), "packed: fewer rows than conversations"
    assert loss.item() == pytest.approx(total / weight, rel=1e-4)


def stock_cells(network: TrainingNetwork, batch: Batch) -> Any:
    pixels = (torch.from_numpy(batch.patches).float() - network.mean) / network.std
    pixels = pixels.view(-1, 3, 1, 196).expand(-1, 3, 2, 196).reshape(len(pixels), -1)
    grids = torch.tensor([[1, 2 * down, 2 * across] for n, across, down in batch.groups for _ in range(n)])
    return network.model.model.visual(pixels, grid_thw=grids).pooler_output


def branched_conversation() -> Conversation:
    drawn = (random_conversation(np.random.default_rng(seed), [(3, 3)], 1) for seed in range(100))
    return next(c for c in drawn if len(c.branches) > 5)


def test_answers_alone_are_learnt(tokenizer: Any) -> None:
    conversation = branched_conversation()
    tokens = ConversationBatcher(tokenizer, RECIPE)._tokens(conversation)
    learnt = tokenizer.decode([i for i, weight in zip(tokens.ids, tokens.weights, strict=True) if weight])
    answers = [answer for branch in conversation.branches for answer in branch.answers]
    assert len(answers) > 5
    assert learnt == "".join(f"{answer}<|im_end|>" for answer in answers)


def test_each_branch_reads_as_the_chat_template_writes_it(tokenizer: Any) -> None:
    conversation = branched_conversation()
    tokens = ConversationBatcher(tokenizer, RECIPE)._tokens(conversation)
    branch = conversation.branches[1]
    ids = [i for i, b in zip(tokens.ids, tokens.branches, strict=True) if b in (0, 2)]
    content = [{"type": "image"} if isinstance(p, int) else {"type": "text", "text": p} for p in conversation.opening]
    messages = [{"role": role, "content": text} for role, text in conversation.earlier]
    messages.append({"role": "user", "content": [*content, {"type": "text", "text": branch.rest}]})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    wanted = tokenizer.encode(text.replace("<|image_pad|>", "<|image_pad|>" * 9), add_special_tokens=False)
    assert ids[: len(wanted)] == wanted


def test_cell_labels_name_rank_and_place_items() -> None:
    items = (Item("7", "", 0.1, 0.9), Item("square", "green", 0.9, 0.1))
    labels = cell_labels(Scene("shapes", items), (4, 3)).reshape(3, 4, -1)
    found = [tuple(int(n) for n in at) for at in np.argwhere(labels == 1)]
    assert found == [
        (0, 3, 10 + 1),
        (0, 3, 14 + 1),
        (0, 3, 20 + 1),
        (0, 3, 24 + 1),
        (2, 0, 7),
        (2, 0, 20),
        (2, 0, 24 + 2),
    ]
    crowd = cell_labels(Scene("crowd", items), (4, 3))
    assert (crowd[:, 20:] == -1).all()
    assert (crowd[:, :20] == labels.reshape(12, -1)[:, :20]).all()


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
