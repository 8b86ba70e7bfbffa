"""`sfumato explain`: what a paper claims, and what can be certified."""

from typing import Annotated

import typer
from rich.markdown import Markdown

from flows.cli.options import OUT
from sfumato.methods import METHODS, promise
from sfumato.named_settings import known


def explain(method: Annotated[str, typer.Argument(help=f"One of: {', '.join(METHODS)}.")]) -> None:
    """Say what a method's paper claims, what can be certified, and why the two differ."""
    known("method", method, METHODS)
    OUT.print(Markdown(f"# {method}\n\n{promise(method)}"))
