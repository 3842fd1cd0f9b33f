"""A port for a server that must be given one before it starts."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"
# Below Linux's range for outgoing connections (32,768 to 60,999) and above Ray's for its workers (10,002 to 19,999), so
# that nothing else on the machine takes the port before the server does.
OURS = range(20_000, 32_000)


def free_port() -> int:
    while True:
        port = random.SystemRandom().choice(OURS)
        with socket.socket() as probe:
            if probe.connect_ex((LOOPBACK, port)):
                return port
