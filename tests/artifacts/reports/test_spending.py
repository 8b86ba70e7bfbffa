"""The picture of what a private set has cost, while others go on spending."""

from PIL import Image

from artifacts.reports.spending import draw
from sfumato.privacy.accounting.events import Gaussian
from tasks.runtime.environment import where
from tests.examples import home_at, reserve

SPEND = Gaussian(noise_multiplier=5.0)


def test_a_spend_of_another_run_while_the_picture_is_drawn_is_left_for_the_next_one(tmp_path, monkeypatch):
    with home_at(tmp_path / "home"), where().ledger() as ledger:
        reserve(ledger, [SPEND])
        history = ledger.history

        def meanwhile(*arguments, **named):
            reserve(ledger, [SPEND], run="run-2")
            return history(*arguments, **named)

        monkeypatch.setattr(ledger, "history", meanwhile)
        draw(tmp_path / "spending.png", ledger, "scans")
        assert len(ledger.spends("scans")) == 2
    with Image.open(tmp_path / "spending.png") as image:
        assert image.format == "PNG"
