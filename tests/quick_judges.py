"""Judges that learn for a moment only; also a command line in a process of its own that judges so: `python -m tests.quick_judges run ...`."""

import pytest


def judge_quickly(patch: pytest.MonkeyPatch) -> None:
    """Judging CNNs of a few steps."""
    for module in ("classifier", "utility"):
        patch.setattr(f"sfumato.evaluation.{module}.default_steps", lambda _: 20)
    patch.setattr("sfumato.evaluation.two_samples.STEPS", 20)


if __name__ == "__main__":
    judge_quickly(pytest.MonkeyPatch())
    from flows.cli.main import main

    main()
