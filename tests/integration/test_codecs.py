"""Codecs through real processes: fewer bytes on the coded links alone, and refusals before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from tests.integration.test_step import make_job

CODEC = pipesvc.Codec(activations="int8", gradients="bf16", links={"1>2": pipesvc.Codec(gradients="int8")})


def coded_job(codec: pipesvc.Codec = CODEC, *, same_host: bool = True, **changes: Any) -> pipesvc.Job:
    strategy = pipesvc.Strategy(micro_batches=4, num_stages=3, codec=codec, same_host=same_host)
    return make_job(strategy=strategy, **changes)


def test_coded_links_send_fewer_bytes_and_say_their_error(cluster: pipesvc.Client) -> None:
    exact, coded = cluster.submit(make_job()), cluster.submit(coded_job())
    exact.wait()
    coded.wait()
    assert coded.losses() == pytest.approx(exact.losses(), rel=0.02)
    assert coded.losses() != exact.losses()
    plain = {link["link"]: link for link in exact.links()}
    links = {link["link"]: link for link in coded.links()}
    assert {name: link["tensor_bytes"] for name, link in links.items()} == {
        name: link["tensor_bytes"] for name, link in plain.items()
    }
    assert all(link["coded_bytes"] == link["tensor_bytes"] for link in plain.values())
    ratios = {name: link["tensor_bytes"] / link["coded_bytes"] for name, link in links.items()}
    # Parcels of few numbers: the scale of a block counts for more than with 256 of them.
    assert 3 < ratios.pop("0>1/activation") < 4
    assert ratios == pytest.approx(
        {"feeder>0/input": 1, "feeder>2/label": 1, "1>2/activation": 1, "1>0/gradient": 2, "2>1/gradient": 3.5},
        rel=0.15,
    )
    is_coded = {name: link["relative_error"] > 0 for name, link in links.items()}
    assert is_coded == {name: link["coded_bytes"] < link["tensor_bytes"] for name, link in links.items()}
    assert max(link["relative_error"] for link in links.values()) < 0.02


def test_both_ways_of_a_link_code_alike(cluster: pipesvc.Client) -> None:
    """Bit for bit, whatever went by the agents before a shorter way was found."""
    near, far = (cluster.submit(coded_job(same_host=is_near, epochs=2)) for is_near in (True, False))
    near.wait()
    far.wait()
    assert near.losses() == far.losses()
    state, expected = near.state_dict(), far.state_dict()
    assert [name for name in expected if not torch.equal(state[name], expected[name])] == []
    one, other = ({link["link"]: link for link in run.links()} for run in (near, far))
    assert one["0>1/activation"]["way"] == "same host"
    assert other["0>1/activation"]["way"] == "gRPC"
    for what in ("tensor_bytes", "coded_bytes", "num_frames"):
        assert {name: link[what] for name, link in one.items()} == {name: link[what] for name, link in other.items()}
    assert one["0>1/activation"]["coded_bytes"] < one["0>1/activation"]["tensor_bytes"]


def test_a_link_that_the_plan_does_not_have_is_refused(cluster: pipesvc.Client) -> None:
    with pytest.raises(PipesvcError, match="codec has the link 0>2, and no activation goes that way") as caught:
        cluster.submit(coded_job(pipesvc.Codec(links={"0>2": CODEC.links["1>2"]}))).wait()
    assert caught.value.code is ErrorCode.INVALID_JOB
    assert "the stages have 0>1, 1>2" in str(caught.value)


def test_a05_verify_refuses_a_codec(cluster: pipesvc.Client) -> None:
    with pytest.raises(PipesvcError, match="verify compares bits, and the job has a codec") as caught:
        pipesvc.verify(cluster, coded_job())
    assert caught.value.code is ErrorCode.INVALID_JOB
