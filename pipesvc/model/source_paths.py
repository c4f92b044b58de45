"""Files of user code as the user knows them.

A worker runs the sources of a job from a folder that it has unpacked them to, whose name says nothing to anybody and is
another one in each run. What the user knows is the path from where imports start: `train.py`, `models/blocks.py`, or
`transformers/models/gpt2/modeling_gpt2.py` of an installed package.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Final

_FRAME: Final = re.compile(r'^([\s|+-]*File ")([^"\n]+)(", line \d+)', re.MULTILINE)


def shown_path(path: str) -> str:
    """From the innermost entry of `sys.path` that holds it; as it is, where none does."""
    holders = [root for each in sys.path if each and path.startswith(root := os.path.join(each, ""))]
    return path.removeprefix(max(holders, key=len, default=""))


def shown_traceback(text: str) -> str:
    """The same of each frame of a traceback that was formatted."""
    return _FRAME.sub(lambda found: f"{found[1]}{shown_path(found[2])}{found[3]}", text)
