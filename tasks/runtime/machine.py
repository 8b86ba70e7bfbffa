"""The facts that stand beside a measured figure: the machine, and the commit that was checked out."""

import importlib.metadata
import os
import platform
import subprocess

from tasks.runtime.environment import CHECKOUT

LINUX = platform.system() == "Linux"
OUTPUTS = ("benchmarks/results", "docs/results")
"""Where measured figures are written, which says nothing about the program that measured them."""


def machine_facts() -> dict[str, str | int | float]:
    """Cores, memory, system, versions and load."""
    facts: dict[str, str | int | float] = {
        "cores": len(os.sched_getaffinity(0)) if LINUX else os.cpu_count() or 0,
        "processor": platform.machine(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }
    return {**facts, "load": round(os.getloadavg()[0], 1)} if LINUX else facts


def commit() -> str:
    """The commit that is checked out, with `+` where files differ from it, results left aside; empty without git."""
    name, rest = git("rev-parse", "--short=7", "HEAD"), [f":(exclude){folder}" for folder in OUTPUTS]
    return f"{name}+" if name and git("status", "--porcelain", "--", ".", *rest) else name


def git(*arguments: str) -> str:
    """What git prints about this checkout; empty where there is none."""
    try:
        return subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
