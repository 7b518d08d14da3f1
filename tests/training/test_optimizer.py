"""Parameter groups and the optimizers that can be built; on sharded parameters in test_parallel.py."""

import open_clip
import pytest
import timm.optim
import torch

from training.checkpoint import CheckpointError
from training.distributed import World
from training.optimizer import build_optimizer, muon_groups, parameter_groups
from training.settings import Settings, SettingsError, heard_by
from training.state import Parts, Progress, restore_training


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
    for name in ("adan", "lion", "sgd"):
        assert len(build_optimizer(model, Settings(opt=f"timm/{name}")).param_groups) == 2


def orthogonalised(model, name):
    """Names of the parameters that Muon steps orthogonally; those that have other steps have Adam's averages."""
    settings = Settings(opt=f"timm/{name}")
    optimizer = build_optimizer(model, settings)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    states = {name: optimizer.state[p] for name, p in model.named_parameters() if p.requires_grad}
    assert all(("momentum_buffer" in state) == state["use_muon"] for state in states.values())
    return {name for name, state in states.items() if state["use_muon"]}


def test_a_checkpoint_with_other_groups_is_refused_for_what_it_is():
    model, settings = open_clip.create_model("tiny-emoji-eq7"), Settings(opt="timm/nmuon")
    parts = Parts(model, build_optimizer(model, settings), None, None, None, None)
    state = {"step": 7, "optimizer": {"param_groups": [{}, {}]}}
    with pytest.raises(CheckpointError, match="step 7 has 2 groups of parameters in its optimizer and this run 3"):
        restore_training(state, parts, Progress(), settings, World(0, 1, torch.device("cpu")))


@pytest.mark.parametrize("name", ["muon", "nmuon", "adamuon", "nadamuon"])
def test_muon_orthogonalises_maps_and_no_tables(name):
    """By shape alone timm would take both kinds of embeddings too: the token embedding is 64 by 32."""
    vision = {"image_size": 32, "patch_size": 8, "layers": 2, "width": 32, "head_width": 16, "block_type": "eq7"}
    text = {"context_length": 8, "vocab_size": 64, "width": 32, "heads": 2, "layers": 1}
    model = open_clip.CLIP(16, vision, text)
    parts = ("attn.in_proj_weight", "attn.out_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    blocks = ("visual.transformer.resblocks.0", "visual.transformer.resblocks.1", "transformer.resblocks.0")
    wanted = {f"{block}.{part}" for block in blocks for part in parts}
    assert orthogonalised(model, name) == wanted | {"visual.conv1.weight", "visual.proj", "text_projection"}


def test_a_resnets_position_table_is_one_and_no_parameter_is_lost():
    vision = {"layers": [1, 1, 1, 1], "width": 8, "image_size": 64}
    model = open_clip.CLIP(16, vision, {"context_length": 8, "vocab_size": 64, "width": 32, "heads": 2, "layers": 1})
    free, maps, tables = muon_groups(model, 0.2)
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)] for p in tables["params"]} == {
        "token_embedding.weight", "positional_embedding", "visual.attnpool.positional_embedding"
    }  # fmt: skip
    assert [group["weight_decay"] for group in (free, maps, tables)] == [0.0, 0.2, 0.2]
    assert sorted(id(p) for group in (free, maps, tables) for p in group["params"]) == sorted(names)


def _end(name, changes):
    """Where a vector and a matrix are after some steps with timm's optimizer; None where it cannot be used here."""
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((16,), (16, 8))]
    try:
        optimizer = timm.optim.create_optimizer_v2(parameters, name, lr=0.01, weight_decay=0.1, **changes)
        for _ in range(8):  # the rectified ones begin to divide after six
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
    except Exception:  # it wants a GPU, or a closure
        return None
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


@pytest.mark.parametrize("name", [name for name in timm.optim.list_optimizers() if heard_by(f"timm/{name}")])
def test_what_an_optimizer_hears_changes_its_steps(name):
    """All of timm's, so that a new one that takes a setting and does nothing with it is noticed."""
    heard = heard_by(f"timm/{name}")
    eps = {"eps": 1e-6} if "eps" in heard else {}
    betas = {"betas": (0.9, 0.98)} if "beta1" in heard else {}
    plain = _end(name, eps | betas)
    if plain is None:
        return
    if "beta1" in heard:
        assert not torch.equal(plain, _end(name, eps | {"betas": (0.5, 0.98)}))
        assert torch.equal(plain, _end(name, eps | {"betas": (0.9, 0.5)})) == ("beta2" not in heard)
    if "eps" in heard and not name.endswith("sgdp"):  # which reads it where a step is projected
        assert not torch.equal(plain, _end(name, betas | {"eps": 10.0}))
