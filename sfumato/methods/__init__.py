"""The papers, by name. To add one: write its file, import it here, and name it in `PAPERS`."""

from types import ModuleType

from sfumato.methods import dp_ensemble, dp_promise, dp_sgd, dppm, empirical_denoiser, moments, rapid

PAPERS: dict[str, ModuleType] = {
    "rapid": rapid,
    "dp-sgd": dp_sgd,
    "dp-promise": dp_promise,
    "dp-ensemble": dp_ensemble,
    "empirical-denoiser": empirical_denoiser,
    "moments": moments,
    "dppm": dppm,
}
"""Name -> module with `claim` (what the paper says about privacy) and `PROMISE` (what can be certified, and why)."""

METHODS: dict[str, ModuleType] = {name: module for name, module in PAPERS.items() if hasattr(module, "plan")}
"""Those of them that run: modules with `Method` (settings section), `plan`, `corrupt` and `draw` as well."""
