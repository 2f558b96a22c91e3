"""How the texts of a server that is about to be stopped are ended: by a file that appears.

Triton waits for what runs before it unloads a model, and ends itself without a word to anybody when it has waited long enough
(24.10). So whoever stops a server before all texts are finished tells the hosts first, and each caller gets an error of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

VARIABLE = "BRIM_END_TEXTS"
"""Environment variable of the server: the file. Without it nobody looks."""
LOOK_EVERY_S = 0.1


def when_told_to_end(end: Callable[[], None]) -> None:
    """Call ``end`` once the file is there, from a thread of its own."""
    name = os.environ.get(VARIABLE)
    if not name:
        return

    def look() -> None:
        while not Path(name).exists():
            time.sleep(LOOK_EVERY_S)
        end()

    threading.Thread(target=look, name="brim-end-file", daemon=True).start()
