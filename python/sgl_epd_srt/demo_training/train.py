"""Trains the demo model from nothing and writes the checkpoint."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import multiprocessing as mp
import os
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from queue import Full
from typing import Any

import numpy as np
import torch

from sgl_epd.demo import model_path, questions
from sgl_epd.demo.filler import filler
from sgl_epd.demo.samples import KINDS, sample
from sgl_epd_srt.demo_training.batches import Batch, batches
from sgl_epd_srt.demo_training.export import export
from sgl_epd_srt.demo_training.network import TrainingNetwork, build_model
from sgl_epd_srt.demo_training.recipe import Recipe
from sgl_epd_srt.demo_training.tokenizer import build_tokenizer

_QUEUE = 6  # batches drawn ahead


def main(argv: Sequence[str] | None = None) -> None:
    recipe, args = _parse(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(recipe.seed)
    tokenizer = build_tokenizer(_corpus(recipe.seed), recipe.vocab_size)
    model = build_model(recipe, tokenizer)
    if args.init is not None:
        model.load_state_dict(type(model).from_pretrained(args.init, dtype=torch.float32).state_dict())
    network = TrainingNetwork(model, recipe)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    total = recipe.vision_steps + recipe.single_steps + recipe.mixed_steps
    optimizers = Optimizers(network, recipe)
    started_at = time.monotonic()
    meter = _Meter()
    for step, batch in enumerate(_drawn_beside(tokenizer, recipe)):
        lr = learning_rate(step, total, recipe)
        meter.add(_losses(network, batch, recipe))
        torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip_norm)
        optimizers.step(lr)
        if (step + 1) % args.log_every == 0:
            print(
                f"step {step + 1}/{total} {time.monotonic() - started_at:.0f} s lr {lr:.1e} {meter.take()}", flush=True
            )
        if args.save_every and (step + 1) % args.save_every == 0:
            export(model, tokenizer, args.out)
    export(model, tokenizer, args.out)
    print(f"wrote {args.out} after {time.monotonic() - started_at:.0f} s", flush=True)


def learning_rate(step: int, total: int, recipe: Recipe) -> float:
    """Linear warm-up, again when the language model joins, then a cosine down to the final rate."""
    since = step if step < recipe.vision_steps else step - recipe.vision_steps
    warm = min(1.0, (since + 1) / recipe.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * step / total))
    return warm * (recipe.final_lr + (recipe.peak_lr - recipe.final_lr) * cosine)


def _losses(network: TrainingNetwork, batch: Batch, recipe: Recipe) -> dict[str, float]:
    """Leaves the gradients of a batch, and returns what it measured."""
    with torch.autocast("cpu", torch.bfloat16, enabled=_has_fast_bfloat16()):
        features = network.see(batch)
        loss, seen = network.cell_loss(features, batch)
        if batch.words is not None:
            answers, right = network.answer_loss(features, batch.words)
            loss = answers + recipe.cell_loss_weight * loss
            seen |= {"answers": float(answers.detach()), "right": float(right)}
    loss.backward()
    return seen


@cache
def _has_fast_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 matrices natively here (four times as fast as float32)."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Optimizers:
    """Muon for the matrices inside blocks, AdamW for embeddings, heads, biases and norms.

    Measured on the vision tower: Muon at 3 times AdamW's rate needs about 0.6 of the steps that AdamW alone needs.
    """

    def __init__(self, network: TrainingNetwork, recipe: Recipe) -> None:
        matrices: list[torch.nn.Parameter] = []
        others: list[torch.nn.Parameter] = []
        for name, parameter in network.named_parameters():
            inside = parameter.dim() == 2 and not any(part in name for part in ("embed", "lm_head", "cells"))
            (matrices if inside else others).append(parameter)
        self._muon_ratio = recipe.muon_ratio
        self._muon = torch.optim.Muon(
            matrices, lr=recipe.peak_lr, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        self._adamw = torch.optim.AdamW(others, lr=recipe.peak_lr, betas=(0.9, 0.98), weight_decay=0.0, foreach=True)

    def step(self, lr: float) -> None:
        """Applies the gradients at AdamW's rate `lr`, and clears them."""
        for optimizer, rate in ((self._adamw, lr), (self._muon, lr * self._muon_ratio)):
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def _drawn_beside(tokenizer: Any, recipe: Recipe) -> Iterator[Batch]:
    """The batches, drawn by a process of their own."""
    context = mp.get_context("fork")
    queue: Any = context.Queue(_QUEUE)
    worker = context.Process(target=_draw, args=(tokenizer, recipe, queue), daemon=True)
    worker.start()
    try:
        while (batch := queue.get(timeout=120)) is not None:
            yield batch
    finally:
        worker.terminate()
        worker.join()


def _draw(tokenizer: Any, recipe: Recipe, queue: Any) -> None:
    parent = os.getppid()
    for batch in itertools.chain(batches(tokenizer, recipe), [None]):
        while os.getppid() == parent:  # never outlives the training
            try:
                queue.put(batch, timeout=1)
                break
            except Full:
                continue


def _corpus(seed: int) -> Iterator[str]:
    """Text that the tokenizer learns its merges from: questions, answers, roles, and filler."""
    for kind in KINDS:
        for index in range(150):
            case = sample(kind, index, "train")
            yield f"{case.question}\n{case.answer}"
    rng = np.random.default_rng(seed)
    for _ in range(200):
        yield "system\nYou are a helpful assistant.\nuser\nassistant\n"
        yield filler(rng, 40)
    for prompts, answer in questions.SMALL_TALK:
        yield from [answer, *prompts] * 20


class _Meter:
    """Means since the last look."""

    def __init__(self) -> None:
        self._seen: dict[str, list[float]] = {}

    def add(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._seen.setdefault(name, []).append(value)

    def take(self) -> str:
        text = " ".join(f"{name} {np.mean(values):.4f}" for name, values in self._seen.items())
        self._seen.clear()
        return text


def _parse(argv: Sequence[str] | None) -> tuple[Recipe, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog="python -m sgl_epd.demo.train", description=__doc__)
    parser.add_argument("--out", type=Path, default=model_path(), help="folder of the checkpoint")
    parser.add_argument("--init", type=Path, help="checkpoint to go on from, instead of from nothing")
    parser.add_argument("--threads", type=int, default=1, help="one core trains, the other draws")
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=0, help="write the checkpoint every N steps too")
    for field in dataclasses.fields(Recipe):
        if field.type in ("int", "float"):
            kind = int if field.type == "int" else float
            parser.add_argument("--" + field.name.replace("_", "-"), type=kind, default=field.default)
    args = parser.parse_args(argv)
    numbers = {f.name: getattr(args, f.name) for f in dataclasses.fields(Recipe) if hasattr(args, f.name)}
    return Recipe(**numbers), args


if __name__ == "__main__":
    main()
