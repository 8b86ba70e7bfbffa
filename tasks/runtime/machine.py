"""The facts that stand beside a measured figure or drawn images: the machine, and the commit that was checked out."""

import importlib.metadata
import os
import platform
import subprocess

from tasks.runtime.environment import CHECKOUT

LINUX = platform.system() == "Linux"
OUTPUTS = ("benchmarks/results", "docs/results")
"""Where measured figures are written, which says nothing about the program that measured them."""

SHORT, WHOLE = 7, 40
"""Digits of a commit beside a figure, and in a card."""


def machine_facts() -> dict[str, str | int | float]:
    """Cores, memory, system, versions and load."""
    facts: dict[str, str | int | float] = {
        "cores": len(os.sched_getaffinity(0)) if LINUX else os.cpu_count() or 0,
        "processor": platform.machine(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }
    return {**facts, "load": round(os.getloadavg()[0], 1)} if LINUX else facts


def memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def commit(digits: int = SHORT) -> str:
    """The commit of the checkout, with `+` where files that git knows differ from it, results left aside; empty without a checkout or git."""
    name = git("rev-parse", f"--short={digits}", "HEAD") if (CHECKOUT / ".git").exists() else ""
    others = [f":(exclude){folder}" for folder in OUTPUTS]
    changed = name and git("status", "--porcelain", "--untracked-files=no", "--", ".", *others)
    return f"{name}+" if changed else name


def git(*arguments: str) -> str:
    """What git prints about this checkout; empty where it fails or there is none."""
    try:
        return subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
