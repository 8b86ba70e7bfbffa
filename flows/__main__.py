"""`python -m flows` is the command `sfumato`."""

from flows.cli import main

main()
