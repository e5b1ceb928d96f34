"""What a fake worker answers: the shapes of SGLang 0.5.23, with a text that follows from the request's body.

Sources, in `sglang/srt/entrypoints`: `http_server.py`, `openai/{protocol,serving_chat,serving_base,sse_utils}.py`.
The text names a digest of the body without the routing fields, so that an answer to another request, or to an altered
body, is noticed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

ROUTING_FIELDS = ("rid", "bootstrap_host", "bootstrap_port", "bootstrap_room")
DECODE_SIDE = "_decode"
"""Put into a body by a decode worker for itself."""
CREATED = 1700000000
MODEL = "fake-vl"


def digest(body: dict[str, Any]) -> str:
    """128 bits of the body, without the fields that a router sets."""
    plain = {key: value for key, value in body.items() if key not in (*ROUTING_FIELDS, DECODE_SIDE)}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:32]


def num_tokens(body: dict[str, Any]) -> int:
    sampling = body.get("sampling_params")
    wanted = body.get("max_tokens") or body.get("max_completion_tokens") or body.get("max_output_tokens")
    if isinstance(sampling, dict):
        wanted = sampling.get("max_new_tokens", wanted)
    return min(int(wanted or 4), 256)


def tokens(body: dict[str, Any], index: int = 0) -> list[str]:
    """The answer, token by token; `index` is the choice, or the place in a batch."""
    mark = digest(body)
    return [f"<{mark}/{index}/{i}>" for i in range(num_tokens(body))]


def text(body: dict[str, Any], index: int = 0) -> str:
    return "".join(tokens(body, index))


def width(path: str, body: dict[str, Any]) -> int:
    """How many sequences the request asks for: batch size times `n`."""
    sampling = body.get("sampling_params")
    n = (sampling.get("n") if isinstance(sampling, dict) else None) or body.get("n") or 1
    return batch_size(path, body) * int(n)


def batch_size(path: str, body: dict[str, Any]) -> int:
    """1 for a single prompt (`GenerateReqInput._determine_batch_size` in `managers/io_struct.py`)."""
    prompt = body.get("prompt") if path == "/v1/completions" else body.get("text")
    ids = body.get("input_ids")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return len(ids) if isinstance(ids, list) and ids and isinstance(ids[0], list) else 1


def is_batch(path: str, body: dict[str, Any]) -> bool:
    prompt = body.get("prompt") if path == "/v1/completions" else body.get("text", body.get("input_ids"))
    listed = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    return listed or width(path, body) > 1


def usage(body: dict[str, Any], count: int) -> dict[str, Any]:
    done = num_tokens(body) * count
    return {
        "prompt_tokens": 8,
        "total_tokens": 8 + done,
        "completion_tokens": done,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def error(status: int, message: str, type_: str | None = None) -> dict[str, Any]:
    """`ErrorResponse`, flat, as SGLang's OpenAI routes send it."""
    return {"object": "error", "message": message, "type": type_ or str(status), "param": None, "code": status}


def whole(path: str, body: dict[str, Any], rids: list[str], finish: str = "stop") -> Any:
    """The answer to a request that does not stream."""
    count = width(path, body)
    if path == "/generate":
        items = [generate_item(body, i, rids[i], text(body, i), finish) for i in range(count)]
        return items if is_batch(path, body) else items[0]
    if path == "/v1/responses":
        content = [{"type": "output_text", "text": text(body), "annotations": []}]
        output = [{"type": "message", "role": "assistant", "status": "completed", "content": content}]
        return {"id": rids[0], "object": "response", "created_at": CREATED, "model": MODEL, "output": output}
    if path == "/v1/completions":
        choices = [_choice(i, {"text": text(body, i)}, finish) for i in range(count)]
        return _openai(body, rids[0], "text_completion", choices, count)
    choices = [_choice(i, {"message": _message(body, i)}, finish) for i in range(count)]
    return _openai(body, rids[0], "chat.completion", choices, count)


def generate_item(body: dict[str, Any], index: int, rid: str, so_far: str, finish: str | None) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": {"type": finish} if finish else None,
        "prompt_tokens": 8,
        "completion_tokens": num_tokens(body),
    }
    if body.get("return_logprob"):
        # Decode has no logits of the prompt (`disaggregation/decode.py`).
        meta["input_token_logprobs"] = [] if body.get(DECODE_SIDE) else [[-0.5, 7, None]]
        meta["output_token_logprobs"] = [[-0.25, i, None] for i in range(num_tokens(body))]
    return {"text": so_far, "output_ids": list(range(num_tokens(body))), "meta_info": meta, "index": index}


def _message(body: dict[str, Any], index: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text(body, index), "reasoning_content": None}
    if body.get("tools"):
        call = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps({"mark": digest(body)})}
        message["tool_calls"] = [{"id": "call_0", "index": 0, "type": "function", "function": call}]
    return message


def _choice(index: int, content: dict[str, Any], finish: str) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": None, "finish_reason": finish, "matched_stop": None}


def _openai(body: dict[str, Any], rid: str, kind: str, choices: list[Any], count: int) -> dict[str, Any]:
    shared = {"id": rid, "object": kind, "created": CREATED, "model": body.get("model", MODEL)}
    return {**shared, "choices": choices, "usage": usage(body, count), "metadata": {"weight_version": "default"}}


def events(path: str, body: dict[str, Any], rids: list[str], finish: str = "stop") -> list[bytes]:
    """The events of a streamed answer, without [DONE]."""
    count = width(path, body)
    found = [_role_event(body, rids[0], i) for i in range(count)] if path == "/v1/chat/completions" else []
    for i in range(count):
        so_far = ""
        for token in tokens(body, i):
            so_far += token
            found.append(_token_event(path, body, rids, i, token, so_far))
    found += [_finish_event(path, body, rids, i, finish) for i in range(count)] if path != "/v1/responses" else []
    if path.startswith("/v1/c") and (body.get("stream_options") or {}).get("include_usage"):
        found.append(_chunk(path, body, rids[0], [], usage(body, count)))
    return found


def _role_event(body: dict[str, Any], rid: str, index: int) -> bytes:
    delta = {"role": "assistant", "content": "", "reasoning_content": None}
    return _chunk("/v1/chat/completions", body, rid, [_stream_choice(index, {"delta": delta})])


def _token_event(path: str, body: dict[str, Any], rids: list[str], index: int, token: str, so_far: str) -> bytes:
    if path == "/generate":
        return sse(generate_item(body, index, rids[index], so_far, None))
    if path == "/v1/responses":
        return sse({"type": "response.output_text.delta", "delta": token}, "response.output_text.delta")
    content = {"text": token} if path == "/v1/completions" else {"delta": {"content": token, "reasoning_content": None}}
    return _chunk(path, body, rids[0], [_stream_choice(index, content)])


def _finish_event(path: str, body: dict[str, Any], rids: list[str], index: int, finish: str) -> bytes:
    if path == "/generate":
        return sse(generate_item(body, index, rids[index], text(body, index), finish))
    content = {"text": ""} if path == "/v1/completions" else {"delta": {"content": None, "reasoning_content": None}}
    return _chunk(path, body, rids[0], [_stream_choice(index, content, finish)])


def _stream_choice(index: int, content: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": None, "finish_reason": finish, "matched_stop": None}


def _chunk(path: str, body: dict[str, Any], rid: str, choices: list[Any], use: dict[str, Any] | None = None) -> bytes:
    kind = "text_completion" if path == "/v1/completions" else "chat.completion.chunk"
    value = {"id": rid, "object": kind, "created": CREATED, "model": body.get("model", MODEL), "choices": choices}
    return sse({**value, "usage": use} if use else value)


def sse(value: Any, event: str | None = None) -> bytes:
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
