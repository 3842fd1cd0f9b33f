"""An OpenAI-compatible server that replies to every request at once with the same text, so only the client takes time.

``python instant_server.py MODEL WINDOW WORDS`` prints its port and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def answers(model: str, window: int, text: str) -> dict[bytes, bytes]:
    """Return the complete responses, head and body, to a GET and to a POST."""
    usage = {"completion_tokens": 9}  # no count of the prompt, because a wrong one would look like a cut prompt
    completion = {"choices": [{"index": 0, "text": text, "finish_reason": "stop"}], "usage": usage}
    cards = {"data": [{"id": model, "max_model_len": window}]}
    bodies = {b"GET": json.dumps(cards).encode(), b"POST": json.dumps(completion).encode()}
    return {method: HEAD % len(body) + body for method, body in bodies.items()}


async def serve(model: str, window: int, text: str) -> None:
    responses = answers(model, window, text)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
                await reader.readexactly(length)
                writer.write(responses[head.split(b" ", 1)[0]])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    # Backlog and limit are far above what 64 connections need, because the server must not affect the measurement.
    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 22, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
