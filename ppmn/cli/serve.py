"""Serve a page that grounds captions on images, and an HTTP API."""

import argparse
from dataclasses import fields
from functools import partial

import ppmn
from ppmn.cli.arguments import add_model, add_runtime, add_threads, runtime_options
from ppmn.serve.limits import Limits

HELP = "serve a page that grounds captions on images"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_runtime(parser)
    add_threads(parser, "all")
    parser.add_argument("--host", default="127.0.0.1", help="bind address (default: 127.0.0.1, this machine)")
    parser.add_argument("--port", type=int, default=8000, help="port, or 0 for a free one (default: 8000)")
    parser.add_argument("--token", metavar="TEXT", help="require this token of every client")
    for limit in fields(Limits):
        text = f"{limit.metadata['meaning']} (default: {limit.default:,})"
        name = f"--max-{limit.name}".replace("_", "-")
        parser.add_argument(name, type=int, default=limit.default, metavar="N", help=text)


def run(args: argparse.Namespace) -> None:
    from ppmn.errors import InputError

    try:
        from ppmn.serve.server import open_server
    except ImportError as error:
        raise InputError(f"{error.name} is not installed: pip install 'ppmn[serve]'") from error
    limits = Limits(**{limit.name: getattr(args, f"max_{limit.name}") for limit in fields(Limits)})
    load = partial(ppmn.load, args.model, **runtime_options(args))
    server = open_server(load, host=args.host, port=args.port, token=args.token, limits=limits)
    print(f"{args.model} is served at {server.url} (Ctrl+C stops it)", flush=True)
    if server.public:
        print("anyone who can reach this machine can use the server; --token restricts it", flush=True)
    server.run()
