"""What a worker registers as, and above all at which address its peers shall dial it.

A host knows itself by names and addresses that mean nothing, or something else, on other hosts: loopback, and on many
hosts their own name, which /etc/hosts takes for 127.0.1.1. A worker that registered such an address would be dialled in
vain, or by a peer that then speaks to itself. What faces the coordinator faces the other workers too; and that is known
only when the coordinator's name can be resolved, so the registration is made when it is first dialled.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.addresses import Address, loopback_meant, parse, source_towards
from pipesvc.rpc.v1 import worker_pb2
from pipesvc.worker import identity
from pipesvc.worker.settings import WorkerSettings


def check_listen(settings: WorkerSettings) -> None:
    """Refuse to listen at a name that this host takes for loopback, where the coordinator is elsewhere."""
    listen = parse(settings.listen)
    meant = loopback_meant(listen)
    if not meant:
        return
    source = source_towards(parse(settings.coordinator))
    if source and _is_loopback(source):
        return
    raise PipesvcError(
        ErrorCode.INVALID_JOB,
        f"--listen {listen}: {listen.host} is {meant} on this host, where no other host reaches it",
        advice=f"Give --listen {Address(host=source or '0.0.0.0', port=listen.port)}, or correct /etc/hosts",
    )


class Registration:
    """Made once; `message` may take seconds for the resolver and belongs into a thread."""

    def __init__(
        self, settings: WorkerSettings, devices: Sequence[str], bound: Address, say: Callable[[str], None]
    ) -> None:
        self._settings: Final = settings
        self._devices: Final = tuple(devices)
        self._bound: Final = bound
        self._say: Final = say
        self._incarnation: Final = secrets.token_hex(8)
        self._message: worker_pb2.Register | None = None

    def message(self) -> worker_pb2.Register:
        """Raises COORDINATOR_ABSENT while the coordinator cannot be resolved and its address would be needed."""
        if self._message is None:
            settings, limit_bytes = self._settings, self._settings.memory_limit_bytes
            self._message = worker_pb2.Register(
                name=settings.name,
                incarnation=self._incarnation,
                host=identity.host(),
                boot_id=identity.boot_id(),
                devices=self._devices,
                memory_bytes=_capped(identity.memory_bytes(), limit_bytes),
                memory_limit_bytes=limit_bytes,
                num_cores=identity.num_cores(),
                num_threads=settings.num_threads,
                versions=identity.versions(),
                data_address=str(self._data_address()),
                fingerprint=identity.fingerprint(self._devices, settings.num_threads),
            )
        return self._message

    def _data_address(self) -> Address:
        """What was said, else what is bound; for a wildcard or a loopback name, what faces the coordinator."""
        said = parse(self._settings.advertise) if self._settings.advertise else None
        known = said or (None if self._bound.is_wildcard else self._bound)
        meant = loopback_meant(known) if known is not None else ""
        if known is not None and not meant:
            self._warn_of_loopback(known)
            return known
        coordinator = parse(self._settings.coordinator)
        source = source_towards(coordinator, prefers_ipv4=self._bound.host != "::")
        if not source:
            message = f"there is no way to the coordinator at {coordinator}: its name has no address, or no route leads"
            raise PipesvcError(ErrorCode.COORDINATOR_ABSENT, f"{message} there", advice="Check the address")
        if known is None:
            return Address(host=source, port=self._bound.port)
        if _is_loopback(source):
            return known
        instead = Address(host=source, port=known.port)
        self._say(f"{known.host} is {meant} on this host: peers are told to dial {instead} instead of {known}")
        return instead

    def _warn_of_loopback(self, address: Address) -> None:
        if address.is_loopback and not parse(self._settings.coordinator).is_loopback:
            self._say(f"other hosts cannot reach {address}, its data server: give --listen HOST:PORT --insecure")


def _is_loopback(host: str) -> bool:
    return Address(host=host, port=0).is_loopback


def _capped(num_bytes: int, limit_bytes: int) -> int:
    return min(num_bytes, limit_bytes) if limit_bytes else num_bytes
