"""The demo's judgement, with a host that is played by an object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sgl_epd.demo import show as show_module
from sgl_epd.demo.samples import sample
from sgl_epd.demo.show import CASES, AskError, Reply, _from_events, _from_json, show


class FakeAsker:
    """Knows all the answers, but for those questions that are named."""

    def __init__(self, wrong: tuple[str, ...] = (), fails: tuple[str, ...] = ()) -> None:
        self.answers = {_key(case.messages()): case.answer for case in (sample(kind, seed) for kind, seed, _ in CASES)}
        self.wrong = wrong
        self.fails = fails
        self.streamed: list[bool] = []

    async def ask(self, messages: list[dict[str, Any]], stream: bool) -> Reply:
        self.streamed.append(stream)
        question = messages[0]["content"][-1]["text"]
        if question in self.fails:
            raise AskError("HTTP 502: no")
        answer = self.answers.get(_key(messages), "not asked before")
        return Reply("banana" if question in self.wrong else answer, 3, 0.5)

    async def page(self, url: str) -> str:
        return ""


def _key(messages: list[dict[str, Any]]) -> str:
    return json.dumps(messages)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show_module, "_SETTLE_S", 0.0)


async def run(asker: FakeAsker, folder: Path) -> tuple[bool, str]:
    said: list[str] = []
    right = await show(asker, [("encode", "http://e")], folder, said.append)  # type: ignore[arg-type]
    return right, "\n".join(said)


async def test_all_right(tmp_path: Path) -> None:
    asker = FakeAsker()
    right, said = await run(asker, tmp_path)
    assert right
    assert f"{len(CASES)} of {len(CASES)} answers are right" in said
    assert asker.streamed[: len(CASES)] == [stream for _, _, stream in CASES]
    assert "no timeline: other requests came in between" in said
    pictures = sum(len(sample(kind, seed).images) for kind, seed, _ in CASES)
    assert len(list(tmp_path.glob("question-*-image-*.png"))) == pictures


async def test_one_wrong_answer_is_not_right(tmp_path: Path) -> None:
    case = sample(*CASES[0][:2])
    right, said = await run(FakeAsker(wrong=(case.question,)), tmp_path)
    assert not right
    assert f"answer   banana   (0.50 s)\n   WRONG: expected   {case.answer}" in said
    assert f"{len(CASES) - 1} of {len(CASES)} answers are right" in said


async def test_a_failed_question_is_not_right_and_the_others_are_asked(tmp_path: Path) -> None:
    case = sample(*CASES[2][:2])
    right, said = await run(FakeAsker(fails=(case.question,)), tmp_path)
    assert not right
    assert "failed   HTTP 502: no" in said
    assert f"{len(CASES) - 1} of {len(CASES)} answers are right" in said


def test_an_event_stream() -> None:
    chunk = {"choices": [{"delta": {"content": "a b"}}]}
    last = {"choices": [{"delta": {"content": ""}}]}
    body = "".join(f"data: {json.dumps(part)}\n\n" for part in (chunk, chunk, last)) + "data: [DONE]\n\n"
    assert _from_events(body.encode()) == ("a ba b", 2)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "broke off before"),
        (b'data: {"choices": []}\n\n', "broke off before"),
        (b'data: {"error": {"message": "no"}}\n\ndata: [DONE]\n\n', "ended with an error"),
    ],
)
def test_a_broken_event_stream(body: bytes, says: str) -> None:
    with pytest.raises(AskError, match=says):
        _from_events(body)


def test_not_a_completion() -> None:
    with pytest.raises(AskError, match="not a chat completion"):
        _from_json(b'{"choices": []}')
