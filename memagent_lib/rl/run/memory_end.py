"""One line about a run that ended for lack of memory: what was used, by whom, and which settings to lower.

Ray reports such an end in sixty lines; torch names the size of the last request only.
"""

from __future__ import annotations

import re
from typing import Any

from memagent_lib.rl.verl.verl_keys import CHECKPOINTING, GPU_SHARE, MICRO_BATCH

_USED = re.compile(r"was ([\d.]+)GB used / ([\d.]+)GB limit")
_USER = re.compile(r"^(\d+)\t([\d.]+)\t(.+)$", re.MULTILINE)
_ON_GPU = re.compile(
    r"CUDA out of memory\. Tried to allocate ([\d.]+ \wiB)\. GPU (\d+) has a total capacity of ([\d.]+ \wiB)"
)
_ON_CPU = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
_NAMES = {"WorkerDict": "update", "RolloutServer": "rollout server", "training_process": "trainer"}
SHOWN = 4  # of the processes with the most memory


def shortened(error: str, settings: dict[str, Any]) -> str:
    """Return one line for an error about memory, and any other error unchanged.

    ``settings`` are verl's by dotted name; the line names the value of the one to lower.
    """
    used = _USED.search(error)
    if used and "low on memory" in error:
        what = f"out of memory: {used[1]} of {used[2]} GB of this machine were in use ({_users(error)})"
        return f"{what}; end programs that are not of the run, or {_advice(settings)}"
    gpu = _ON_GPU.search(error)
    if gpu:
        what = f"out of memory: {gpu[1]} more were needed on GPU {gpu[2]}, which has {gpu[3]}"
        return f"{what}; {_advice(settings)}, or lower verl.{GPU_SHARE} (now {settings.get(GPU_SHARE)})"
    cpu = _ON_CPU.search(error)
    if cpu:
        return f"out of memory: {int(cpu[1]) / 1e9:.1f} GB more were needed at once; {_advice(settings)}"
    return error


def _users(error: str) -> str:
    """Return the processes with the most memory, those of the run by what they do and others by number and name."""
    users = []
    for process, size, command in _USER.findall(error)[:SHOWN]:
        role = next((name for part, name in _NAMES.items() if part in command), "")
        users.append(f"{role or f'process {process}, {command[:60].strip()}'} {float(size):.1f}")
    return ", ".join(users)


def _advice(settings: dict[str, Any]) -> str:
    now = settings.get(MICRO_BATCH)
    advice = f"lower verl.{MICRO_BATCH} (now {now:,})" if now else f"lower verl.{MICRO_BATCH}"
    return advice if settings.get(CHECKPOINTING) else f"{advice}, or set verl.{CHECKPOINTING} = true"
