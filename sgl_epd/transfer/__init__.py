"""Moving embeddings into a peer's blocks: one interface, four ways.

`base` is the interface, `pieces` says which bytes go where. `mooncake` is for production (RDMA or TCP), `shm` for one
host, `zmq` where Mooncake is not installed, `local` for tests and the simulator.
"""
