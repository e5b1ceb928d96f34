"""All numbers of the training recipe in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Sizes of the network and the course of the training. Steps are optimizer steps."""

    seed: int = 1
    vocab_size: int = 768
    # vision tower
    vision_dim: int = 128
    vision_layers: int = 4
    vision_heads: int = 4
    vision_mlp_ratio: int = 2
    # language model
    hidden: int = 128
    layers: int = 5
    heads: int = 2
    kv_heads: int = 2
    intermediate: int = 384
    mrope_section: tuple[int, int, int] = (8, 12, 12)
    # course
    vision_steps: int = 600  # the vision tower alone, against the cell labels
    single_steps: int = 250  # conversations about one picture
    mixed_steps: int = 1850  # everything
    vision_batch: int = 24  # pictures in a step of the vision tower alone
    batch_images: int = 18  # pictures talked about in a step
    crowds: int = 3  # crowded pictures beside them, for the vision tower
    peak_lr: float = 2e-3
    final_lr: float = 2e-5
    muon_ratio: float = 3.0  # Muon's learning rate over AdamW's
    warmup_steps: int = 100
    weight_decay: float = 0.05  # of Muon's matrices
    clip_norm: float = 1.0
    cell_loss_weight: float = 0.2  # beside the answers' loss


PATCH = 14
MERGE = 2
CELL = PATCH * MERGE  # one language-model token covers CELL x CELL pixels
MIN_PIXELS = 9 * CELL * CELL
MAX_PIXELS = 64 * CELL * CELL
IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)  # CLIP's, as every Qwen2-VL uses them
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)
