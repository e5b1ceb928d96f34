"""Recorded traffic in three formats, at its own pace or faster."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from sgl_epd.errors import ConfigError
from sgl_epd.planner.trace import mean_rate, read_trace, write_trace
from sgl_epd.planner.workloads import load_workload

LINE = '{{"at":{},"text_tokens":1,"output_tokens":1}}\n'


@pytest.mark.parametrize("name", ["mixed", "audio-24", "epd-synthetic-2"])
def test_written_and_replayed(name: str, tmp_path: Path) -> None:
    requests = list(load_workload(name).requests(5.0, seed=1, limit=200))
    file = tmp_path / "trace.jsonl"
    assert write_trace(file, requests) == 200
    replayed = list(read_trace(file))
    assert [r._replace(at=0.0) for r in replayed] == [r._replace(at=0.0) for r in requests]
    assert [r.at for r in replayed] == pytest.approx([r.at - requests[0].at for r in requests])
    twice = [r.at for r in read_trace(file, speed=2.0, limit=50)]
    assert twice == pytest.approx([r.at / 2 for r in replayed[:50]])
    assert mean_rate(file) == pytest.approx(199 / replayed[-1].at)


def test_azure(tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text(
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,0,2162,5\n"
        "2024-05-10 00:00:01.509930+00:00,2,100,7\n"
    )
    first, second = read_trace(file, image=(500, 400))
    assert (first.at, first.text_tokens, first.output_tokens, first.media) == (0.0, 2162, 5, ())
    assert (second.at, second.text_tokens, second.output_tokens) == (pytest.approx(1.5), 100, 7)
    assert [(item.width, item.height) for item in second.media] == [(500, 400)] * 2
    assert len({item.content for item in second.media}) == 2


def test_mooncake(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text(
        '{"timestamp": 3000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
        '{"timestamp": 4500, "input_length": 7322, "output_length": 0, "hash_ids": [0, 2]}\n'
    )
    assert [(r.at, r.text_tokens, r.output_tokens) for r in read_trace(file)] == [(0.0, 6758, 500), (1.5, 7322, 1)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is no trace"),
        ("a,b\n1,2\n", "is no trace: neither JSON lines nor a CSV with TIMESTAMP"),
        ('{"at":0,"text_tokens":1,"output_tokens":1}\n{"at":1}\n', "line 2: Object missing required field"),
        (
            '{"at":5,"text_tokens":1,"output_tokens":1}\n{"at":1,"text_tokens":1,"output_tokens":1}\n',
            "request 2 is earlier",
        ),
        ("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\nnoon,1,1,1\n", "line 2: Invalid isoformat"),
        ("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-05-10,1\n", "line 2: int"),
    ],
)
def test_wrong_traces(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        list(read_trace(file))


def test_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_trace(tmp_path / "none"))
    file = tmp_path / "trace"
    write_trace(file, itertools.islice(load_workload("offline-1").requests(1.0), 3))
    with pytest.raises(ConfigError, match="3 requests at one point in time"):
        mean_rate(file)
    with pytest.raises(ConfigError, match="a speed of 0"):
        list(read_trace(file, speed=0))
