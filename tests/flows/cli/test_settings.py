"""What can be set, and what there is to start from, on the screen."""

import pytest

from flows.cli.setting_rows import listed
from sfumato.methods import METHODS
from sfumato.named_settings import PRESETS, names
from sfumato.settings import Settings, resolve


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_is_listed_with_what_it_means_and_its_default_can_be_set(method):
    rows = list(listed(Settings(method=METHODS[method].section())))
    assert len(rows) > 100 and len({path for path, _, _ in rows}) == len(rows)
    for path, default, meaning in rows:
        assert meaning or path.split(".")[-1] in ("seed", "kind"), path
        if path != "method.name" and default not in ("{}", "[]", "''"):
            assert resolve(method, "digits", [f"{path}={default}"])


def test_one_section_is_shown_alone(sfumato):
    shown = sfumato("settings", "dp-sgd", "--section", "fine_tuning")
    assert shown.code == 0 and "fine_tuning.clip" in shown.out and "generation." not in shown.out
    assert sfumato("settings", "dp-sgd", "--section", "fine").is_one_line("unknown section 'fine'", "fine_tuning")
    assert sfumato("settings", "rapidd").is_one_line("did you mean 'rapid'")


def test_every_preset_is_listed(sfumato):
    shown = sfumato("presets")
    assert shown.code == 0 and all(name in shown.out for name in names(PRESETS))
