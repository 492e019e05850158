"""A whole server process with a fake engine, as `kt run` puts it together: python -m
tests.server.fake_server HOME.

Prints its URL when it is ready and "closed" at the end of an orderly exit. Options: --port N,
--latency SECONDS a token, --reply TEXT, --key KEY, --stay (an answer never ends by itself),
--grace SECONDS for answers to finish after a signal.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kt.engine.engine import Engine
from kt.errors import KtError
from kt.server import serve as serving
from kt.server.app import create_app
from tests.fakes import FakeExecutor, replying
from tests.server.harness import TextTokenizer


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--reply", default="Hello **world**!")
    parser.add_argument("--key", action="append", default=[])
    parser.add_argument("--stay", action="store_true")
    parser.add_argument("--also", action="append", default=[], help="another name of the model")
    parser.add_argument("--grace", type=float, default=serving.GRACE_SECONDS)
    options = parser.parse_args()
    serving.GRACE_SECONDS = options.grace
    reply = (lambda _: ord("x")) if options.stay else replying(options.reply)
    executor = FakeExecutor(latency=options.latency, reply=reply, context=100_000, n_pages=12_500)
    try:
        listener = serving.reserve(options.host, options.port, api_keys=options.key)
    except KtError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n")
        return error.exit_code
    with Engine(executor, TextTokenizer(), model_name="fake-1b") as engine:
        info = {"model": "fake-1b", "aliases": options.also}
        app = create_app(engine, TextTokenizer(), info, api_keys=options.key)
        serving.serve(app, listener=listener, home=options.home, ready=say)
    say("closed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
