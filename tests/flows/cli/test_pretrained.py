"""What the command says of weights from elsewhere that cannot be used: one line, exit code 2."""

import diffusers
import pytest

from tests import elsewhere

WHY = ("--public-because", "made here: Apache-2.0, saw nobody")


@pytest.fixture
def brought(tmp_path):
    return elsewhere.save(tmp_path / "unet", elsewhere.unet(), diffusers.DDPMScheduler(num_train_timesteps=50))


def test_the_plan_says_what_was_brought_and_who_answers(sfumato, brought):
    done = sfumato("plan", "dp-sgd", "--set", f"network.from={brought}", *WHY)
    assert done.code == 0, done.err
    shown = " ".join(done.out.replace("│", " ").split())
    assert "from elsewhere, 0 steps" in shown and "network.from=unet (UNet2DModel" in shown and "saw nobody" in shown


def test_mistakes_are_one_line(sfumato, brought, tmp_path):
    at = ("plan", "dp-sgd", "--set")
    assert sfumato(*at, f"network.from={brought}").is_one_line("--public-because", "licence")
    assert sfumato(*at, f"network.from={tmp_path / 'none'}", *WHY).is_one_line("is no folder")
    assert sfumato(*at, f"network.from={brought}", "--set", "latent.kind=kl", *WHY).is_one_line(
        "channels in", "latent.from=PATH"
    )
    diffusers.DDPMScheduler(beta_schedule="sigmoid").save_pretrained(brought / "scheduler")
    assert sfumato(*at, f"network.from={brought}", *WHY).is_one_line("beta_schedule=sigmoid", "cannot be expressed")
