"""The methods, by name. To add one: write its file, import it here, and name it in `METHODS`."""

from types import ModuleType

from sfumato.methods import dp_sgd, rapid

METHODS: dict[str, ModuleType] = {"rapid": rapid, "dp-sgd": dp_sgd}
"""Name -> module with `Method` (settings section), `plan`, `corrupt` and `draw`."""
