"""``memagent serve``: an OpenAI-compatible endpoint that reads requests of any length with a memory."""

from __future__ import annotations

import argparse

from memagent_lib.cli.agent_options import add_agent_options, agent_of, sampling_of
from memagent_lib.cli.arguments import Verbs, add_verb, option, port_refused, require_port

HOST = "127.0.0.1"
EXAMPLES = """\
Every request is read as a document and a question about it:
  1. the fields document and question of the request: extra_body={"document": text}
  2. else the last of several messages is the question, and those before it are the document
  3. else a single message of up to --question-tokens is a question without a document
  4. else --split, or the request's field split, says which part of the message is the question: auto (its end, if it
     is marked as a question), last_paragraph, last_line, first_paragraph, first_line
The field memagent of a reply names the rule that was used, the question, what was ignored (sampling is the server's
own), and a trace_id for GET /v1/traces/ID.

examples:
  memagent serve --model Qwen/Qwen2.5-7B-Instruct
  memagent serve --model NAME --backend openai --base-url http://localhost:8001/v1 --port 8000
  curl http://127.0.0.1:8000/v1/models
  lm_eval --model local-chat-completions --apply_chat_template --tasks longbench_narrativeqa --model_args \\
    model=NAME,base_url=http://127.0.0.1:8000/v1/chat/completions,max_length=1000000
lm-eval itself cuts prompts on the left to max_length, 2,047 tokens by default.
"""


def add_parser(verbs: Verbs) -> None:
    verb = add_verb(verbs, "serve", run, "answer OpenAI-compatible chat requests of any length, on loopback", EXAMPLES)
    add_agent_options(verb)
    server = verb.add_argument_group("server")
    port = f"the port on {HOST}, 0 for any free one; vLLM's own server has the same default"
    option(server, "--port", "N", port, default=8000)
    split = "how to divide a long single message, see above"
    option(server, "--split", "NAME", split, default="auto")
    option(server, "--readings", "N", "requests answered at the same time; others wait", default=8)
    also = "a name under which clients may reach it besides localhost, such as a proxy's; repeat it for more"
    option(server, "--allow-host", "NAME", also, action="append", default=[])


def run(a: argparse.Namespace) -> int:
    require_port("--port", a.port, free=True)
    import socket

    import uvicorn

    from memagent_lib.serve import ServeSettings, make_app

    settings = ServeSettings(
        name=a.model.rstrip("/").rpartition("/")[2],
        split=a.split,
        readings=a.readings,
        allowed_hosts=tuple(a.allow_host),
    )
    with socket.socket() as listening:
        # A port is free although connections of a server that has just stopped are still in TIME_WAIT.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, a.port))  # a port in use fails here, before a model is loaded
        except OSError as failure:
            raise OSError(f"{port_refused(HOST, a.port, failure)}; give another --port") from failure
        app = make_app(agent_of(a), settings, sampling_of(a))
        listening.listen()  # a client that reads the line below may connect at once
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
        port = listening.getsockname()[1]
        print(f"http://{HOST}:{port}/v1 answers as {settings.name!r}; Ctrl-C stops it", flush=True)
        server.run([listening])
    return 0
