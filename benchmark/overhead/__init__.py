"""Parts of `benchmark/router_overhead.py`: mocks, peers, what is measured, and the report."""
