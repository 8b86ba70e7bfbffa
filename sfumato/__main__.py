"""The command `sfumato` where the library alone is installed: what the recipient of a published folder needs. Also `python -m sfumato`."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from sfumato import __version__
from sfumato.errors import BadInput

USAGE = """Usage: sfumato COMMAND ...

  verify-card FOLDER [--key KEY]    check a published folder: signature, every file, and epsilon computed anew
  generate FOLDER --images N        draw more images of what was paid for, into class folders; costs nothing

sfumato COMMAND --help says more. From Python: sfumato.load("FOLDER").draw(1000). What runs on private images (plan, run, publish, ...)
is in a checkout, installed by `make demo` or pip install -e ".[flow]"."""


def _verify() -> int:
    from sfumato import verify_card

    for folder in sys.argv[1:2]:
        if not folder.startswith("-") and not (Path(folder).is_file() or Path(folder, "card.json").is_file()):
            print(f"error: {folder!r} holds no card.json: name a published folder, or the card in it", file=sys.stderr)
            return BadInput.exit_code
    return verify_card.main(sys.argv[1:])


def _generate() -> int:
    from sfumato import generate

    generate.main()
    return 0


COMMANDS: Mapping[str, Callable[[], int]] = {"verify-card": _verify, "generate": _generate}


def main() -> int:
    """Carry out the command that the command line names; 2 for one that is not there."""
    _, *words = sys.argv
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if words[0] == "--version":
        print(f"sfumato {__version__}")
        return 0
    if words[0] not in COMMANDS:
        print(f"error: {words[0]!r} is no command of the library ({', '.join(COMMANDS)})\n\n{USAGE}", file=sys.stderr)
        return BadInput.exit_code
    sys.argv = [f"sfumato {words[0]}", *words[1:]]
    return COMMANDS[words[0]]()


if __name__ == "__main__":
    sys.exit(main())
