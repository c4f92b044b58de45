"""A client on a host of its own: trains the wide job and writes down what it saw. `python -m tests.hosts.client`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pipesvc
from pipesvc.errors import PipesvcError
from tests.hosts import wide


def main(address: str, num_steps: str, folder: str) -> None:
    """Leaves `result.json` and, after a success, `weights.safetensors` in the folder."""
    result: dict[str, object] = {}
    try:
        with pipesvc.connect(address) as client:
            run = client.submit(wide.make_job(int(num_steps)), run_id="wide")
            run.wait()
            run.save_weights(Path(folder) / "weights.safetensors")
            result = {"losses": run.losses(), "links": run.links(), "warnings": list(run.info().warnings)}
    except PipesvcError as error:
        result = {"code": str(error.code), "text": str(error), "worker": error.details.where.worker}
    (Path(folder) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
