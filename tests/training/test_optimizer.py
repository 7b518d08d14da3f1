"""Parameter groups and the optimizers that can be built; on sharded parameters in test_parallel.py."""

import open_clip
import pytest

from training.optimizer import build_optimizer, parameter_groups
from training.settings import Settings, SettingsError


def test_weight_decay_spares_vectors_norms_and_the_temperature():
    model = open_clip.create_model("tiny-emoji-eq7learned")
    free, decayed = parameter_groups(model, 0.2)
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    assert free["weight_decay"] == 0.0
    assert decayed["weight_decay"] == 0.2
    spared = {names[id(p)] for p in free["params"]}
    assert "logit_scale" in spared
    assert "visual.transformer.resblocks.0.attn.log_gain" in spared
    assert {names[id(p)].rsplit(".", 1)[-1] for p in decayed["params"]} <= {
        "weight", "in_proj_weight", "positional_embedding", "proj", "text_projection"
    }  # fmt: skip
    assert len(spared) + len(decayed["params"]) == len(names)


def test_adamw_takes_the_settings():
    optimizer = build_optimizer(
        open_clip.create_model("tiny-emoji-eq7"), Settings(lr=3e-4, wd=0.1, beta1=0.8, beta2=0.9, eps=1e-5)
    )
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.1]
    assert optimizer.defaults["lr"] == 3e-4
    assert optimizer.defaults["betas"] == (0.8, 0.9)
    assert optimizer.defaults["eps"] == 1e-5


def test_an_optimizer_that_cannot_be_used_is_refused_with_a_sentence():
    model = open_clip.create_model("tiny-emoji-eq7")
    for name in ("bnbadam", "fusedadam", "adahessian"):
        with pytest.raises(SettingsError, match=f"--opt timm/{name} cannot be used here: ."):
            build_optimizer(model, Settings(opt=f"timm/{name}"))
    for name in ("nmuon", "adan", "lion", "sgd"):
        assert len(build_optimizer(model, Settings(opt=f"timm/{name}")).param_groups) == 2
