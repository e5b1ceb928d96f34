"""HTTP/1.1 over asyncio protocols: a server and a client lean enough for a router written in Python.

Knows nothing about routers, workers or engines. `server` serves, `client` calls, `headers` holds what both need.
"""
