"""Sfumato turns private image collections into synthetic ones that may be shared.

The library half: pure functions and frozen values. It knows no orchestrator, no tracking server, no environment
variable and no clock; those belong to `flows`, `tasks` and `artifacts`.
"""

__version__ = "0.1.0"
