"""``memagent serve``: an OpenAI-compatible endpoint that reads requests of any length with a memory."""

from __future__ import annotations

from typing import Any

import click

from memagent_lib.cli.options import HOST, agent_of, agent_options, bound, port_type, reader_option

EPILOG = """\b
Every request is read as a document and a question about it:
  1. the fields document and question of the request: extra_body={"document": text}
  2. else the last of several messages is the question, and those before it are the document
  3. else a single message of up to question_tokens is a question without a document
  4. else --split, or the request's field split, says which part of the message is the question: auto (its end, if it
     is marked as a question), last_paragraph, last_line, first_paragraph, first_line
The field memagent of a reply names the rule that was used, the question, what was ignored (sampling is the server's
own), and a trace_id for GET /v1/traces/ID.

\b
  lm_eval --model local-chat-completions --apply_chat_template --tasks longbench_narrativeqa --model_args \\\\
    model=NAME,base_url=http://127.0.0.1:8000/v1/chat/completions,max_length=1000000
lm-eval itself cuts prompts on the left to max_length, 2,047 tokens by default.
"""


@click.command(epilog=EPILOG)
@agent_options
@reader_option
@click.option("--port", metavar="N", type=port_type, default=8000, help=f"The port on {HOST}, 0 for any free one.")
@click.option("--split", metavar="NAME", default="auto", help="How to divide a long single message, see below.")
@click.option(
    "--allow-host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name under which clients may reach it besides localhost, such as a proxy's; repeat it for more.",
)
def serve(port: int, split: str, hosts: tuple[str, ...], **agent: Any) -> None:
    """Answer OpenAI-compatible chat requests of any length, on loopback."""
    import uvicorn

    from memagent_lib.serve import ServeSettings, make_app

    name = agent["model"].rstrip("/").rpartition("/")[2]
    settings = ServeSettings(name=name, split=split, allowed_hosts=hosts)
    with bound("--port", port) as listening:  # a port in use fails here, before a model is loaded
        opened = agent_of(**agent)
        app = make_app(opened, settings, opened.backend.sampling)
        listening.listen()  # a client that reads the line below may connect at once
        print(f"http://{HOST}:{listening.getsockname()[1]}/v1 answers as {name!r}; Ctrl-C stops it", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)).run([listening])
