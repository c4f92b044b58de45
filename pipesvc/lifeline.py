"""A process that must not outlive the one that started it, however that one ends.

A pipe says so without polling and without signals: the starter holds the writing end and writes nothing; when it is
gone, also by SIGKILL, the kernel closes that end and the reader sees the end of the file. Used by workers and
coordinators of a local cluster. Standard library only, for every program may need it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Final

LIFELINE_VARIABLE: Final = "PIPESVC_LIFELINE_FD"
# The folder of a local cluster, which nobody is left to remove when its owner was killed.
FOLDER_VARIABLE: Final = "PIPESVC_LIFELINE_DIR"
FOLDER_PREFIX: Final = "pipesvc-local-"


def watch(on_end: Callable[[], None], environ: MutableMapping[str, str] | None = None) -> Callable[[], None]:
    """Call `on_end` on the running loop when the starter is gone, and remove the starter's folder, if it said one;
    gives a function that stops watching.

    The variables are taken out of the environment and the descriptor is not inherited any more, so that they do not
    reach processes that are started later. Without the first variable nothing is watched.
    """
    env = os.environ if environ is None else environ
    text, folder = env.pop(LIFELINE_VARIABLE, ""), Path(env.pop(FOLDER_VARIABLE, ""))
    if not text.isdigit():
        return lambda: None
    descriptor = int(text)
    os.set_inheritable(descriptor, False)
    os.set_blocking(descriptor, False)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)

    def readable() -> None:
        try:
            is_over = not os.read(descriptor, 4096)
        except BlockingIOError:
            return
        except OSError:
            is_over = True
        if is_over:
            loop.remove_reader(descriptor)
            if folder.name.startswith(FOLDER_PREFIX):
                shutil.rmtree(folder, ignore_errors=True)
            on_end()

    loop.add_reader(descriptor, readable)
    return stop
