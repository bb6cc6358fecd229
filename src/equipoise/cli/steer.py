"""`equipoise steer`: a page that shows a running training and changes its preference."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.shared import console
from equipoise.experiments.render import say

__all__ = ["steer_command"]


def steer_command(
    run: Annotated[Path, typer.Argument(help="The folder that the training gave to eq.train.steered.")],
    port: Annotated[int, typer.Option(help="A port of this machine; any that is free if not given.")] = 0,
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,  # noqa: FBT002
) -> None:
    """Show a running training on a local page, and drag its preference; Ctrl-C ends the page, not the training."""
    from equipoise.experiments.steer import Server  # noqa: PLC0415

    with Server(run, port) as server:
        say(console, server.address)
        say(console, "only this machine, and only with this address; Ctrl-C ends the page, not the training")
        if show:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say(console, "the page has ended")
