"""What a profile is kept under, and how its parts make the whole."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipesvc.coordinator import profile_store
from pipesvc.coordinator.limits import LINK_AGE_S, PROFILE_AGE_S
from pipesvc.coordinator.profile_parts import Wanted, device_part, joined, link_part, wanted_parts
from pipesvc.coordinator.profile_store import ProfileStore
from pipesvc.core import costs_json
from pipesvc.core.costs import Costs
from pipesvc.core.flow import Flow
from pipesvc.core.flow_json import to_json
from pipesvc.core.layer_info import LayerInfo
from pipesvc.errors import PipesvcError
from pipesvc.rpc.v1 import job_pb2, local_pb2, worker_pb2
from tests.unit.coordinator.coordinator_world import make_job, make_registration

WORKERS = [make_registration("a"), make_registration("b")]
KEPT: list[Callable[[job_pb2.JobSpec], None]] = [
    lambda job: setattr(job, "name", "other"),
    lambda job: setattr(job, "epochs", 7),
    lambda job: setattr(job, "clip_value", 7.0),
    lambda job: setattr(job.grad_scaler, "init_scale", 7.0),
    lambda job: setattr(job.scheduler, "every", job_pb2.SCHEDULER_PERIOD_STEP),
    lambda job: setattr(job, "build_timeout_s", 7.0),
    lambda job: setattr(job.strategy, "schedule", "GPipe"),
    lambda job: job.strategy.boundaries.append(1),
    lambda job: setattr(job.data, "capacity", 7),
]
CHANGING: list[Callable[[job_pb2.JobSpec], None]] = [
    lambda job: setattr(job.model, "arguments_json", '{"width": 7}'),
    lambda job: setattr(job.optimizer, "target", "torch.optim:Adam"),
    lambda job: setattr(job.loss, "target", "user.model:other"),
    lambda job: setattr(job.data.source, "target", "user.model:other"),
    lambda job: setattr(job.data, "batch_size", 16),
    lambda job: setattr(job, "accumulate", 2),
    lambda job: setattr(job, "autocast", job_pb2.AUTOCAST_BFLOAT16),
    lambda job: setattr(job.strategy, "micro_batches", 4),
    lambda job: setattr(job, "bundle_sha256", "0" * 64),
]


def device_keys(job: job_pb2.JobSpec, workers: list[worker_pb2.Register] = WORKERS) -> dict[str, str]:
    return {worker: key for key, (worker, _) in wanted_parts(job, workers).devices.items()}


def profile(*names: str, memory_bytes: int = 0, activation_bytes: int = 1) -> local_pb2.DeviceProfile:
    layers = [
        local_pb2.LayerProfile(
            layer=local_pb2.LayerInfo(name=name, type="Linear"), activation_bytes=activation_bytes, forward_s=0.5
        )
        for name in names
    ]
    return local_pb2.DeviceProfile(device="cpu", memory_bytes=memory_bytes, micro_batch_rows=4, layers=layers)


def test_halves_of_a_backward_are_costs_where_they_were_measured() -> None:
    """A worker of an earlier version sends none."""
    found = profile("a", "b")
    assert device_part("w", found).devices[0].times.weight_backward_s == ()
    for layer in found.layers:
        layer.input_backward_s, layer.weight_backward_s = 0.25, 0.0
    times = device_part("w", found).devices[0].times
    assert (times.input_backward_s, times.weight_backward_s) == ((0.25, 0.25), (0.0, 0.0))


@pytest.mark.parametrize("change", KEPT)
def test_what_changes_no_cost_changes_no_key(change: Callable[[job_pb2.JobSpec], None]) -> None:
    job = make_job()
    change(job)
    assert device_keys(job) == device_keys(make_job())


@pytest.mark.parametrize("change", CHANGING)
def test_what_is_measured_is_in_the_key(change: Callable[[job_pb2.JobSpec], None]) -> None:
    job = make_job()
    change(job)
    assert device_keys(job).keys() == device_keys(make_job()).keys()
    assert set(device_keys(job).values()).isdisjoint(device_keys(make_job()).values())


def test_a_neighbour_that_comes_changes_the_keys_of_its_machine_alone() -> None:
    other, far = make_registration("c"), make_registration("c")
    far.boot_id = "elsewhere"
    before = device_keys(make_job())
    assert {key: device_keys(make_job(), [*WORKERS, far])[key] for key in before} == before
    assert set(device_keys(make_job(), [*WORKERS, other]).values()).isdisjoint(before.values())


def test_threads_are_shared_as_a_run_on_all_workers_would_share_them() -> None:
    wanted = wanted_parts(make_job(), WORKERS)
    assert wanted.threads == {"a": 2, "b": 2}
    assert list(wanted.links.values()) == [("a", "b"), ("b", "a")]


def whole(parts: list[Costs], workers: list[worker_pb2.Register] = WORKERS) -> Costs:
    keys = [f"device-{index}" for index in range(len(parts))]
    wanted = Wanted(devices={key: ("", "") for key in keys}, links={}, threads={})
    return joined(wanted, dict(zip(keys, parts, strict=True)), workers)


def test_units_that_two_workers_followed_differently_are_refused() -> None:
    units = tuple(LayerInfo(name=name, type="Linear") for name in "01")
    flow = Flow(units=units, values=(), input_users={"x": (0,)}, parameters={})
    other = replace(flow, input_users={"x": (0, 1)})
    texts = [to_json(flow), to_json(flow), to_json(other), ""]
    found = []
    for worker, text in zip("abab", texts, strict=True):
        followed = profile("0", "1")
        followed.flow_json = text
        found.append(device_part(worker, followed))
    assert whole(found[:2]).flow == flow
    for differing in (found[2], found[3]):
        with pytest.raises(PipesvcError, match="must do the same everywhere"):
            whole([found[0], differing])


def test_the_whole_has_every_device_and_of_each_layer_the_most() -> None:
    small, large = profile("0", "1", activation_bytes=5), profile("0", "1", activation_bytes=9)
    costs = whole([device_part("a", small), device_part("b", large)])
    assert [(device.worker, device.times.forward_s) for device in costs.devices] == [
        ("a", (0.5, 0.5)),
        ("b", (0.5, 0.5)),
    ]
    assert [layer.activation_bytes for layer in costs.layers] == [9, 9]
    assert costs.micro_batch_rows == 4


def test_workers_that_build_other_layers_are_named() -> None:
    with pytest.raises(PipesvcError, match=r"1 layers on worker b and 2 on a.*pipesvc profile JOB --fresh"):
        whole([device_part("a", profile("0", "1")), device_part("b", profile("0"))])


@pytest.mark.parametrize(
    ("name", "device_bytes", "limit_bytes", "known_bytes"),
    [("cpu", 0, 0, 1000), ("cuda:0", 80, 0, 80), ("cuda:0", 80, 50, 50), ("cuda:0", 80, 90, 80)],
)
def test_memory_is_the_workers_or_the_gpus_and_at_most_what_was_said(
    name: str, device_bytes: int, limit_bytes: int, known_bytes: int
) -> None:
    worker = make_registration("a")
    worker.memory_bytes, worker.memory_limit_bytes = 1000, limit_bytes
    measured = profile("0", memory_bytes=device_bytes)
    measured.device = name
    [device] = whole([device_part("a", measured)], [worker]).devices
    assert device.memory_bytes == known_bytes


def test_parts_are_kept_in_files_and_a_spoiled_one_is_measured_again(tmp_path: Path) -> None:
    store, wanted = ProfileStore(tmp_path / "profiles"), wanted_parts(make_job(), WORKERS)
    assert store.load(wanted) == {}
    link = local_pb2.LinkProfile(latency_s=0.1, bytes_per_s=1e6)
    parts = {key: device_part(worker, profile("0")) for key, (worker, _) in wanted.devices.items()}
    parts |= {key: link_part(*pair, link) for key, pair in wanted.links.items()}
    store.save(parts)
    assert store.load(wanted) == parts
    spoiled, *_ = wanted.devices
    (store.folder / f"{spoiled}.json").write_text("{")
    assert store.load(wanted).keys() == parts.keys() - {spoiled}


def test_an_old_link_is_measured_again_and_an_old_layer_is_not(tmp_path: Path) -> None:
    store, wanted = ProfileStore(tmp_path / "profiles"), wanted_parts(make_job(), WORKERS)
    link = local_pb2.LinkProfile(latency_s=0.1, bytes_per_s=1e6)
    parts = {key: device_part(worker, profile("0")) for key, (worker, _) in wanted.devices.items()}
    store.save(parts | {key: link_part(*pair, link) for key, pair in wanted.links.items()})
    old_s = time.time() - LINK_AGE_S - 1
    for path in store.folder.iterdir():
        os.utime(path, (old_s, old_s))
    assert store.load(wanted) == parts


def test_a_link_without_a_part_is_no_way_and_keeps_its_name_as_text() -> None:
    wanted = wanted_parts(make_job(), WORKERS)
    parts = {key: device_part(worker, profile("0")) for key, (worker, _) in wanted.devices.items()}
    costs = joined(wanted, parts, WORKERS)
    assert not costs.link("a", "b").is_open
    assert not costs.link("b", "a").is_open
    assert costs.link("a", "a").is_open
    assert costs_json.from_json(costs_json.to_json(costs)) == costs


def test_files_that_nobody_has_asked_for_in_a_long_time_are_removed(tmp_path: Path) -> None:
    store, wanted = ProfileStore(tmp_path / "profiles"), wanted_parts(make_job(), WORKERS)
    parts = {key: device_part(worker, profile("0")) for key, (worker, _) in wanted.devices.items()}
    store.save(parts)
    asked, forgotten = (store.folder / f"{key}.json" for key in parts)
    for path in (asked, forgotten, forgotten.with_suffix(".partial")):
        path.touch()
        os.utime(path, (time.time() - PROFILE_AGE_S - 9,) * 2)
    one = Wanted(devices={asked.stem: wanted.devices[asked.stem]}, links={}, threads={})
    assert store.load(one).keys() == {asked.stem}
    link = link_part("a", "b", local_pb2.LinkProfile(latency_s=0.1, bytes_per_s=1e6))
    store.save({"link-new": link})
    assert {path.name for path in store.folder.iterdir()} == {asked.name, "link-new.json"}


def test_of_very_many_files_the_longest_unused_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_store, "NUM_PROFILES", 3)
    store = ProfileStore(tmp_path / "profiles")
    link = link_part("a", "b", local_pb2.LinkProfile(latency_s=0.1, bytes_per_s=1e6))
    for index in range(5):
        store.save({f"link-{index}": link})
        os.utime(store.folder / f"link-{index}.json", (time.time() - 100 + index,) * 2)
    store.save({"link-5": link})
    assert sorted(path.stem for path in store.folder.iterdir()) == ["link-3", "link-4", "link-5"]
