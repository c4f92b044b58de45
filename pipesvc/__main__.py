"""`python -m pipesvc` is the command `pipesvc`."""

from __future__ import annotations

from pipesvc.cli import main

if __name__ == "__main__":
    main()
