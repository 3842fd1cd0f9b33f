"""``memagent serve``: an OpenAI-compatible endpoint that reads requests of any length with memory."""

from __future__ import annotations

import argparse

from memagent_lib.cli.agent_options import add_agent_options, agent_of
from memagent_lib.cli.arguments import Verbs, add_verb, option, port_refused, require_port

HOST = "127.0.0.1"
EXAMPLES = """\
What is the document and what the question:
  1. the fields document and question of the request win: extra_body={"document": text}
  2. else the messages before the last are the document, and the last one is the question
  3. else a single message of up to --question-tokens is a question without a document
  4. else --split, or the request's field split, divides the single message:
     last_paragraph, first_paragraph, last_line, first_line, mark:TEXT (the question begins at the last TEXT), none
System messages stand before the question where both fit it, else before the document. Each reply says in its field
memagent which rule was used, what was ignored (sampling is the server's own), and its trace_id: GET /v1/traces/ID.

examples:
  memagent serve --model Qwen/Qwen2.5-7B-Instruct
  memagent serve --model NAME --backend openai --base-url http://localhost:8001/v1 --port 8000
  curl http://127.0.0.1:8000/v1/models
"""


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "serve", run, "answer OpenAI-compatible chat requests of any length, on loopback", EXAMPLES)
    add_agent_options(verb)
    server = verb.add_argument_group("server")
    option(server, "--port", "N", f"where it answers on {HOST}", default=8000)
    option(server, "--name", "NAME", "what clients call the model; its folder's or its own name unless given")
    option(server, "--split", "NAME", "how a long single message is divided, see below", default="last_paragraph")
    option(server, "--readings", "N", "requests read side by side", default=8)
    option(server, "--waiting", "N", "requests that may wait for a place; more are told to come back", default=64)
    option(server, "--body-mb", "N", "the longest request", default=1024)


def run(a: argparse.Namespace) -> int:
    require_port("--port", a.port, free=True)
    import socket

    import uvicorn

    from memagent_lib.backends import Sampling
    from memagent_lib.serve import ServeSettings, make_app

    settings = ServeSettings(
        name=a.name or a.model.rstrip("/").rpartition("/")[2],
        split=a.split,
        readings=a.readings,
        waiting=a.waiting,
        body_mb=a.body_mb,
    )
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((HOST, a.port))  # said before a model is loaded
        except OSError as failure:
            raise OSError(f"{port_refused(HOST, a.port, failure)}; give another --port") from failure
        app = make_app(agent_of(a), settings, Sampling(temperature=a.temperature, seed=a.seed))
        place.listen()  # whoever reads the line below may connect at once
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
        print(f"http://{HOST}:{place.getsockname()[1]}/v1 answers as {settings.name!r}; Ctrl-C stops it", flush=True)
        server.run([place])
    return 0
