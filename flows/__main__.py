"""`python -m flows` is the command `sfumato`."""

from flows.cli.main import main

main()
