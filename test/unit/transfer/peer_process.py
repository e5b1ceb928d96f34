"""Run as a process: owns a region, prints its descriptor, answers `OFFSET LENGTH` with the digest of those bytes."""

from __future__ import annotations

import sys

import msgspec
from make_transfer import digest, make


def main(backend: str, nbytes: int) -> None:
    transfer = make(backend)
    region = transfer.allocate(nbytes)
    assert region.data is not None
    print(msgspec.json.encode(transfer.describe()).decode(), flush=True)
    for line in sys.stdin:
        offset, length = map(int, line.split())
        print(digest(region.data[offset : offset + length].tobytes()), flush=True)
    transfer.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
