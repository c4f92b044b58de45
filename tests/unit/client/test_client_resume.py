"""What a job that goes on from a checkpoint names."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest
import torch

from pipesvc.client.calls import Optimizer
from pipesvc.client.job import DataSource, Job
from pipesvc.client.predicting import prediction_job
from pipesvc.client.spec import make_submission, measurable
from pipesvc.errors import PipesvcError


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    (folder / "weights.safetensors").write_bytes(b"weights")
    (folder / "training.safetensors").write_bytes(b"training")
    return folder


def make_job(**changes: object) -> Job:
    return Job(
        model=torch.nn.Identity,
        optimizer=Optimizer(torch.optim.SGD, lr=0.1),
        data=DataSource(torch.utils.data.Dataset, batch_size=4),
        **changes,  # type: ignore[arg-type]
    )


def test_a_checkpoint_is_two_files_by_their_hashes(tmp_path: Path) -> None:
    spec = make_submission(make_job(resume=checkpoint(tmp_path / "saved"))).spec
    assert spec.weights.sha256 == hashlib.sha256(b"weights").hexdigest()
    assert spec.training.sha256 == hashlib.sha256(b"training").hexdigest()


def test_it_is_no_part_of_what_is_measured_and_predicted(tmp_path: Path) -> None:
    job = make_job(resume=checkpoint(tmp_path / "saved"))
    assert measurable(job).resume is None
    assert prediction_job(job, [torch.zeros(1)], None, None).resume is None


def test_it_has_weights_of_its_own(tmp_path: Path) -> None:
    job = make_job(resume=checkpoint(tmp_path / "saved"))
    with pytest.raises(PipesvcError, match="init and resume are both given"):
        dataclasses.replace(job, init=tmp_path / "saved" / "weights.safetensors")


def test_a_folder_that_lacks_a_file_is_refused_by_its_name(tmp_path: Path) -> None:
    (checkpoint(tmp_path / "saved") / "training.safetensors").unlink()
    with pytest.raises(PipesvcError, match=r"no file training\.safetensors in such a folder"):
        make_job(resume=tmp_path / "saved")
