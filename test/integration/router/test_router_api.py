"""The routes, and what clients and benchmarks ask for at their start.

Rows 63 (sglang#12621: --worker-urls ignored), 69 (sglang#12751, #7731: model info missing, server info nesting), 32
(llm-d treats /v1/responses as chat), 39 (dynamo#5267: text requests to a multimodal model).
"""

from __future__ import annotations

import pytest
from cluster import chat, cluster
from fakes import Gate, Hang, answers

CHAT = "/v1/chat/completions"


async def test_what_bench_serving_asks_for() -> None:
    """Row 69: `sglang.bench_serving` reads these before it starts."""
    async with cluster(prefill=2, decode=2) as c:
        models = (await c.request("GET", "/v1/models")).json()
        assert models["data"][0]["id"] == answers.MODEL
        for path in ("/model_info", "/get_model_info"):
            assert (await c.request("GET", path)).json()["model_path"] == f"/models/{answers.MODEL}"
        for path in ("/server_info", "/get_server_info"):
            info = (await c.request("GET", path)).json()
            assert len(info["prefill"]) == 2
            assert len(info["decode"]) == 2
            assert info["internal_states"][0]["last_gen_throughput"] == 0.0
            assert info["decode"][0]["internal_states"], "bench_serving reads it there in PD mode"


async def test_workers_secrets_stay_inside() -> None:
    async with cluster(regular=1, flags=["--worker-api-key", "sk-worker"]) as c:
        c.regular[0].api_key = "sk-worker"
        reply = await c.request("GET", "/server_info")
        assert reply.status == 200
        assert b"sk-worker" not in reply.body


async def test_flush_cache_reaches_every_worker() -> None:
    async with cluster(prefill=1, decode=1) as c:
        assert (await c.request("POST", "/flush_cache")).status == 200
        for worker in c.workers:
            assert [r.path for r in worker.control].count("/flush_cache") == 1
        c.prefill[0].flush_status = 400
        partial = await c.request("POST", "/flush_cache")
        assert partial.status == 206
        assert partial.json()["failed"][0]["worker"] == c.prefill[0].url


async def test_loads_of_all_workers() -> None:
    async with cluster(prefill=1, decode=1) as c:
        gate = Gate()
        c.decode[0].script(gate)
        async with await c.link() as link:
            await link.send("POST", CHAT, chat())
            await gate.struck.wait()
            found = {e["worker"]: e for e in (await c.request("GET", "/v1/loads")).json()["loads"]}
            assert found[c.decode[0].url]["num_running_reqs"] == 1
            own = {e["worker"]: e for e in (await c.request("GET", "/get_loads")).json()["workers"]}
            assert own[c.decode[0].url]["load"] == 1
            gate.release()
            await link.reply()
        own = {e["worker"]: e for e in (await c.request("GET", "/get_loads")).json()["workers"]}
        assert {e["load"] for e in own.values()} == {0}


async def test_health_routes() -> None:
    async with cluster(prefill=1, decode=1) as c:
        for path in ("/liveness", "/health", "/readiness", "/health_generate"):
            assert (await c.request("GET", path)).status == 200, path
        c.decode[0].health_status = 503
        assert (await c.request("GET", "/health_generate")).status == 503
        assert (await c.request("GET", "/health")).status == 200


async def test_tokenizer_routes_need_one_worker_only() -> None:
    async with cluster(prefill=1, decode=1) as c:
        for prefix in ("", "/v1"):
            ids = (await c.request("POST", f"{prefix}/tokenize", {"prompt": "ab"})).json()["tokens"]
            assert ids == [97, 98]
            assert (await c.request("POST", f"{prefix}/detokenize", {"tokens": ids})).json() == {"text": "ab"}


async def test_embeddings_pass_untouched() -> None:
    async with cluster(regular=2) as c:
        body = b'{"input" : ["a","bb"],  "model":"m", "odd":1}'
        reply = await c.request("POST", "/v1/embeddings", body)
        assert [d["embedding"] for d in reply.json()["data"]] == [[1.0], [2.0]]
        seen = [r.body for w in c.regular for r in w.control if r.path == "/v1/embeddings"]
        assert seen == [body]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_responses_are_not_chat(stream: bool) -> None:
    """Row 32: the body of /v1/responses has another shape and must not be mangled."""
    async with cluster(prefill=1, decode=1) as c:
        body = {"model": "m", "input": "hello", "max_output_tokens": 3, "stream": stream}
        reply = await c.request("POST", "/v1/responses", body)
        assert reply.status == 200, reply.body
        got = c.decode[0].requests[0].body
        assert {key: got[key] for key in body} == body
        assert len(c.decode[0].requests[0].rooms) == 1
        assert answers.digest(got) in reply.body.decode()


async def test_text_needs_no_encoder() -> None:
    """Row 39: a plain text request to a multimodal deployment."""
    async with cluster(prefill=1, decode=1, encode=1) as c:
        assert (await c.chat("only words")).status == 200
        assert c.encode[0].received == 0


async def test_unknown_paths_and_methods() -> None:
    async with cluster(prefill=1, decode=1) as c:
        missing = await c.request("POST", "/v1/nonsense", {})
        assert (missing.status, missing.error["type"]) == (404, "NotFoundError")
        wrong = await c.request("GET", CHAT)
        assert (wrong.status, wrong.header("allow")) == (405, "POST")
        assert (await c.request("POST", CHAT + "?trace=1", chat())).status == 200
        assert c.decode[0].requests[0].request.target == CHAT + "?trace=1"


@pytest.mark.parametrize("name", ["x-request-id", "x-correlation-id", "x-trace-id", "request-id"])
async def test_request_ids_go_in_and_out(name: str) -> None:
    async with cluster(prefill=1, decode=1) as c:
        reply = await c.request("POST", CHAT, chat(), **{name: "abc-123"})
        assert reply.header("x-request-id") == "abc-123"
        for worker in c.workers:
            assert worker.requests[0].request.header("x-request-id") == "abc-123"
        made_up = await c.chat()
        assert len(made_up.header("x-request-id") or "") >= 16


async def test_a_client_aborts_by_the_id_it_gave() -> None:
    async with cluster(prefill=1, decode=1) as c, await c.link() as link:
        c.decode[0].script(Hang(after=2))
        await link.send("POST", CHAT, chat(rid="my-own-id", stream=True, max_tokens=50))
        assert await link.read_head() == 200
        assert (await c.request("POST", "/abort_request", {"rid": "other"})).status == 200
        assert c.decode[0].requests[0].outcome == "running"
        assert (await c.request("POST", "/abort_request", {"rid": "my-own-id"})).status == 200
        body = await link.read_body()
        assert b'"finish_reason":"abort"' in body, "the worker's own way of ending an aborted request"
        assert b"my-own-id" in body
        assert c.decode[0].requests[0].outcome == "aborted"


async def test_aggregated_workers() -> None:
    """Row 63: plain `--worker-urls`."""
    async with cluster(regular=2, flags=["--policy", "round_robin"]) as c:
        replies = [await c.chat(f"n{i}") for i in range(6)]
        assert {r.status for r in replies} == {200}
        assert [len(w.requests) for w in c.regular] == [3, 3]
        assert (await c.chat(n=3)).json()["choices"][2]["index"] == 2
        assert "bootstrap_room" not in c.regular[0].requests[0].body


async def test_keep_alive_is_kept() -> None:
    async with cluster(prefill=1, decode=1) as c:
        async with await c.link() as link:
            for i in range(20):
                await link.send("POST", CHAT, chat(f"n{i}"))
                assert (await link.reply()).status == 200
        assert c.prefill[0].server.accepted <= 3
        assert c.decode[0].server.accepted <= 3
