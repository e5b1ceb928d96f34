"""`python -m sgl_epd.demo.evaluate`: exact-match accuracy of the demo model on held-out samples.

Without arguments the checkpoint runs in transformers; with `--base-url http://host:port` the same questions go to an
OpenAI API endpoint, and so through a real server. An answer counts only if all of its text is right.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sgl_epd.demo import model_path, questions
from sgl_epd.demo.samples import Sample, sample

Answerer = Callable[[Sequence[Sample]], list[str]]
_BATCH = 25


@dataclass(frozen=True)
class Group:
    """Sample kinds measured together, the accuracy they must reach, and words of context before the question."""

    name: str
    kinds: tuple[str, ...]
    needed: float
    context_words: int = 0
    share: float = 1.0  # of the number of samples asked for


GROUPS = (
    Group("one image: numbers", tuple(f"number.{name}" for name in questions.ABOUT_NUMBERS), 0.95),
    Group("one image: shapes", tuple(f"shapes.{name}" for name in questions.ABOUT_SHAPES), 0.95),
    Group("two images in order", ("two_images", "two_images.which"), 0.90, share=0.5),
    Group("three images in order", ("three_images",), 0.90),
    Group("one of three images", ("three_images.which",), 0.90, share=0.5),
    Group("one image, long context", ("number.read", "shapes.list"), 0.90, context_words=300, share=0.4),
    Group("three images, long context", ("three_images",), 0.80, context_words=300, share=0.4),
    Group("text only", ("text",), 0.95, share=0.2),
)


@dataclass(frozen=True)
class Result:
    """Counts for one kind of sample within a group."""

    group: Group
    kind: str
    right: int
    asked: int


def evaluate(answer: Answerer, samples: int, show_wrong: int = 0) -> list[Result]:
    """Asks about `samples` samples for each group, shared out among its kinds. Seeds start at 0."""
    results = []
    for group in GROUPS:
        for kind in group.kinds:
            count = max(1, round(samples * group.share / len(group.kinds)))
            cases = [sample(kind, seed, context_words=group.context_words) for seed in range(count)]
            wrong = _wrong(answer, cases)
            results.append(Result(group, kind, count - len(wrong), count))
            for case, got in wrong[:show_wrong]:
                print(f"    {kind}: {case.question[-60:]!r} wanted {case.answer!r} got {got!r}")
    return results


def report(results: Sequence[Result]) -> bool:
    """Prints a table; true if every group reaches the accuracy it needs."""
    passed = True
    for group in GROUPS:
        mine = [r for r in results if r.group == group]
        right, asked = sum(r.right for r in mine), sum(r.asked for r in mine)
        reached = right / asked >= group.needed
        passed &= reached
        verdict = "ok" if reached else f"BELOW {group.needed:.0%}"
        print(f"{group.name:28} {right:5}/{asked:<5} {right / asked:7.2%}  {verdict}")
        if len(mine) > 1:
            for r in mine:
                print(f"    {r.kind:24} {r.right:5}/{r.asked:<5} {r.right / r.asked:7.2%}")
    return passed


def openai_answerer(base_url: str, api_key: str, concurrency: int) -> Answerer:
    """Answers come from an OpenAI API endpoint, at temperature 0."""
    import openai

    client = openai.OpenAI(base_url=base_url.rstrip("/").removesuffix("/v1") + "/v1", api_key=api_key)
    model = client.models.list().data[0].id

    def ask(case: Sample) -> str:
        reply = client.chat.completions.create(
            model=model,
            messages=case.messages(),  # type: ignore[arg-type]
            temperature=0,
            max_tokens=96,
        )
        return reply.choices[0].message.content or ""

    def answer(cases: Sequence[Sample]) -> list[str]:
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(ask, cases))

    return answer


def transformers_answerer(folder: Path, threads: int) -> Answerer:
    """Answers come from the checkpoint in transformers, in float32 on the CPU."""
    module = importlib.import_module("sgl_epd_srt.demo_training.answer")
    answer: Answerer = module.TransformersAnswerer(folder, threads)
    return answer


def _wrong(answer: Answerer, cases: Sequence[Sample]) -> list[tuple[Sample, str]]:
    wrong = []
    for start in range(0, len(cases), _BATCH):
        chunk = cases[start : start + _BATCH]
        for case, got in zip(chunk, answer(chunk), strict=True):
            if got.strip() != case.answer:
                wrong.append((case, got))
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sgl_epd.demo.evaluate", description=__doc__)
    parser.add_argument("--model-path", type=Path, default=model_path())
    parser.add_argument("--base-url", help="measure through this OpenAI API endpoint instead")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--concurrency", type=int, default=4, help="requests at once to --base-url")
    parser.add_argument("--samples", type=int, default=500, help="samples for each of the main groups")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch, without --base-url")
    parser.add_argument("--show-wrong", type=int, default=0, metavar="N", help="print N wrong answers of each kind")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    args = parser.parse_args(argv)
    if args.base_url:
        answer = openai_answerer(args.base_url, args.api_key, args.concurrency)
    else:
        answer = transformers_answerer(args.model_path, args.threads)
    started_at = time.monotonic()
    results = evaluate(answer, args.samples, args.show_wrong)
    passed = report(results)
    print(f"measured in {time.monotonic() - started_at:.0f} s")
    if args.json:
        rows = [{"group": r.group.name, "kind": r.kind, "right": r.right, "asked": r.asked} for r in results]
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
