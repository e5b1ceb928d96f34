"""What router, encoder and prefill say to each other on the native path (`docs/native-path.md`).

Tagged `msgspec` structs, msgpack on the wire, checked while they are decoded. Embeddings never ride in a message, only
descriptions of where they lie.
"""
