"""A child that uses a real Port: `python agent_port_child.py FD first|second NUM_PARCELS`.

The first sends parcels and checks that what comes back as gradients is twice what it sent; the second answers each.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import torch

from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire.links import Link
from pipesvc.worker.local_socket import ChildEnd
from pipesvc.worker.port import ParcelArrived, Port

FORWARD = Link(0, 1, types_pb2.LINK_KIND_ACTIVATION)
BACKWARD = Link(1, 0, types_pb2.LINK_KIND_GRADIENT)
NUM_LARGE = 700_001  # float32 elements: three chunks, the last one not full


def parcel(micro_batch: int) -> Any:
    large = torch.arange(NUM_LARGE, dtype=torch.float32) + micro_batch
    return large.requires_grad_(), {"mask": torch.tensor([True, False]), "none": None}


def parcels(port: Port, num_parcels: int) -> Any:
    num_seen = 0
    while num_seen < num_parcels:
        events = port.poll(30.0)
        assert events, "no parcel came in time"
        while events:
            event = events.pop(0)
            assert isinstance(event, ParcelArrived)
            yield event
            num_seen += 1
            del event


def first(port: Port, num_parcels: int) -> None:
    port.send_parcel(FORWARD, 1, 0, parcel(0))
    for micro_batch, back in enumerate(parcels(port, num_parcels)):
        if micro_batch == 0:  # by now a shorter way has been found, if there is one
            for other in range(1, num_parcels):
                port.send_parcel(FORWARD, 1, other, parcel(other))
        port.consumed(BACKWARD)
        assert (back.link, back.step, back.micro_batch) == (BACKWARD, 1, micro_batch)
        assert torch.equal(back.leaves[0], parcel(micro_batch)[0].detach() * 2)
        assert back.leaves[1] is None


def second(port: Port, num_parcels: int) -> None:
    for micro_batch, arrived in enumerate(parcels(port, num_parcels)):
        port.consumed(FORWARD)
        large, rest = arrived.value()
        assert torch.equal(large, parcel(micro_batch)[0].detach())
        assert rest["mask"].tolist() == [True, False]
        assert rest["none"] is None
        assert arrived.requires_grad == (True, False)
        port.send_gradients(BACKWARD, 1, micro_batch, [large * 2, None])


if __name__ == "__main__":
    descriptor, which, num = sys.argv[1:]
    own_port = Port(ChildEnd(socket.socket(fileno=int(descriptor))))
    {"first": first, "second": second}[which](own_port, int(num))
    own_port.report_counts()
    own_port.report(local_pb2.FromChild(ready=local_pb2.Ready(fingerprint=which)))
    while True:  # until the other end closes
        own_port.poll(None)
