"""Run a command and end every process it leaves behind: ``python -m ...speed.supervised FOLDER COMMAND ...``.

This is a separate process, because adopting orphans and ending descendants affect all children of a process. It prints
the command's status and runs until its standard input is closed (by its parent, or by its parent's death). Then it ends
the command, if it is still running, and all of the command's descendants.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress

from memagent_lib.system import adopt_orphans, end_descendants


def main(folder: str, *command: str) -> None:
    adopt_orphans()  # a run is detached from the command that starts it
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    threading.Thread(target=_print_status, args=(process,), daemon=True).start()
    sys.stdin.read()
    end_descendants()


def _print_status(process: subprocess.Popen[bytes]) -> None:
    status = process.wait()
    with suppress(BrokenPipeError):  # the parent may be gone
        os.write(1, f"{status}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
