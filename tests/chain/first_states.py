"""Decodes the state of a chain in several threads at the same time, before any other thread has.

Run it in a process of its own: a fault of the library ends the process.
"""

from __future__ import annotations

import sys
import threading

from odf_engine.chain.state import ChainState, decode_state, encode_state
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import DatasetKind, SetInfo
from odf_engine.metadata.timestamp import Timestamp

THREADS = 4


def main() -> int:
    """Decode, and return the number of threads that did not get the state."""
    dataset = DatasetId.parse("did:odf:fed01" + "ab" * 32)
    state = ChainState(
        head=Multihash.sha3_256(b""), sequence_number=1, system_time=Timestamp(0), dataset_id=dataset,
        kind=DatasetKind.Root, info=SetInfo("x"),
    )  # fmt: skip
    data, begin, decoded = encode_state(state), threading.Barrier(THREADS), list[ChainState]()

    def decode() -> None:
        begin.wait()
        decoded.append(decode_state(data))

    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=decode) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return THREADS - decoded.count(state)


if __name__ == "__main__":
    sys.exit(main())
