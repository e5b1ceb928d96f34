"""The demo checkpoint in stock transformers: the reference that every served answer is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoProcessor, Qwen2VLForConditionalGeneration

from sgl_epd.demo.samples import Sample


class TransformersAnswerer:
    """Greedy answers in float32 on the CPU, many samples at once."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self._processor = AutoProcessor.from_pretrained(folder)
        self._processor.tokenizer.padding_side = "left"
        self._model = Qwen2VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()

    def __call__(self, cases: Sequence[Sample]) -> list[str]:
        prompts = [
            self._processor.apply_chat_template(case.messages(), tokenize=False, add_generation_prompt=True)
            for case in cases
        ]
        images = [image for case in cases for image in case.images]
        inputs = self._processor(text=prompts, images=images or None, padding=True, return_tensors="pt")
        with torch.inference_mode():
            output = self._model.generate(**inputs, max_new_tokens=96, do_sample=False)
        new = output[:, inputs["input_ids"].shape[1] :]
        return [str(text) for text in self._processor.batch_decode(new, skip_special_tokens=True)]
