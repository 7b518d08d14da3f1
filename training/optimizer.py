"""AdamW, or one of timm's optimizers by name (Muon: timm/nmuon), over OpenCLIP's two parameter groups.

Muon orthogonalises the steps of matrices. Tables are none (token and position embeddings, of which a step sees some
rows): they take Adam's steps, as vectors do (https://kellerjordan.github.io/posts/muon/), where timm, which goes by
shape alone, would orthogonalise a token embedding of 512 or more channels. The patch convolution and the projections at
the towers' ends are maps and stay: with Adam's steps for them too, 180 steps of the quickstart's recipe with emojione
held out ended at 5.3 % top-1 (loss 1.98, the last 20 steps' mean); without, at 9.6 % (1.64); all by shape, at 10.2 %
(1.62). One seed, and the recipe's learning rate for all.

A timm optimizer takes two steps on a small matrix before it is used: some need what this loop does not give (second
derivatives, a GPU). Under FSDP2, where a parameter lies in pieces on the processes, it takes them on a sharded matrix
too, and must arrive at the same place. Muon passes: its products gather what they need, which costs communication.
"""

from collections.abc import Sequence
from typing import Any

import timm.optim
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DeviceMesh, DTensor, Shard, distribute_tensor

from training.settings import Settings, SettingsError, heard_by

# Of a step's length: orthogonalisation in bfloat16 differs by less, orthogonalising the pieces alone by far more.
_SHARDING_TOLERANCE = 0.05


def parameter_groups(model: nn.Module, wd: float) -> list[dict[str, Any]]:
    """OpenCLIP's two groups: no weight decay for vectors, norms, biases and the logit scale."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        exempt = parameter.ndim < 2 or any(part in name for part in ("bn", "ln", "bias", "logit_scale"))
        (free if exempt else decayed).append(parameter)
    return [{"params": free, "weight_decay": 0.0}, {"params": decayed, "weight_decay": wd}]


def muon_groups(model: nn.Module, wd: float) -> list[dict[str, Any]]:
    """The two groups with the decayed one in two, matrices and tables; timm's Muon reads `use_fallback`.

    Tables are the weights of `nn.Embedding` and what a module holds as positional_embedding, pos_embed and the like.
    """
    free, decayed = parameter_groups(model, wd)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    tables |= {id(p) for name, p in model.named_parameters() if "embed" in name.rpartition(".")[2]}
    parts = {is_table: [p for p in decayed["params"] if (id(p) in tables) == is_table] for is_table in (False, True)}
    return [
        free | {"use_fallback": True},
        decayed | {"params": parts[False], "use_fallback": False},
        decayed | {"params": parts[True], "use_fallback": True},
    ]


def build_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer over the model's trained parameters; under FSDP2 every process must call it.

    Raises SettingsError where it cannot be built here, or not on sharded parameters.
    """
    if settings.opt == "adamw":
        groups, betas = parameter_groups(model, settings.wd), (settings.beta1, settings.beta2)
        return torch.optim.AdamW(groups, lr=settings.lr, betas=betas, eps=settings.eps, fused=True)
    one = next(model.parameters())
    _try(settings, one.device, one.device_mesh if isinstance(one, DTensor) else None)
    is_muon = timm.optim.get_optimizer_info(settings.opt.removeprefix("timm/")).opt_class is timm.optim.Muon
    groups = muon_groups(model, settings.wd) if is_muon else parameter_groups(model, settings.wd)
    return _timm_optimizer(groups, settings)


def _timm_optimizer(groups: list[dict[str, Any]], settings: Settings) -> torch.optim.Optimizer:
    """timm's optimizer with those of our settings that it knows."""
    name, heard = settings.opt.removeprefix("timm/"), heard_by(settings.opt)
    kwargs: dict[str, Any] = {}
    if "beta1" in heard:
        kwargs["betas"] = (settings.beta1, settings.beta2)
    if "eps" in heard:
        kwargs["eps"] = settings.eps
    return timm.optim.create_optimizer_v2(groups, name, lr=settings.lr, weight_decay=settings.wd, **kwargs)


def _try(settings: Settings, device: torch.device, mesh: DeviceMesh | None) -> None:
    """Raise SettingsError unless two steps work, and on a mesh lead to the same place with sharded parameters."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((16,), (16, 8))
    start = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    gradients = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    try:
        whole = _after_two_steps(start, gradients, settings)
    except Exception as error:  # each optimizer has its own needs: a GPU, a package, a closure
        raise SettingsError(f"--opt {settings.opt} cannot be used here: {_reason(error)}") from error
    if mesh is None:
        return
    try:
        pieces = _after_two_steps(
            [distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in start],
            [distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in gradients],
            settings,
        )
        ends = [piece.full_tensor() for piece in pieces if isinstance(piece, DTensor)]
    except Exception as error:  # some operation of it has no sharded form
        raise SettingsError(
            f"--opt {settings.opt} cannot be used with --fsdp, as it fails on sharded parameters: {_reason(error)}. "
            "Leave out --fsdp, or take adamw or timm/nmuon"
        ) from error
    for end, wanted, begin in zip(ends, whole, start, strict=True):
        if (end - wanted).norm() > _SHARDING_TOLERANCE * (wanted - begin).norm():
            raise SettingsError(
                f"--opt {settings.opt} cannot be used with --fsdp: its steps on sharded parameters are others than on "
                "whole ones. Leave out --fsdp, or take adamw or timm/nmuon"
            )


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _after_two_steps(start: Sequence[Tensor], gradients: Sequence[Tensor], settings: Settings) -> list[Tensor]:
    """Where the vector and the matrix of `start` are after two steps with the same gradients."""
    vector, matrix = (nn.Parameter(tensor.detach().clone()) for tensor in start)
    groups = [{"params": [vector], "weight_decay": 0.0}, {"params": [matrix], "weight_decay": settings.wd}]
    optimizer = _timm_optimizer(groups, settings)
    for _ in range(2):
        for parameter, gradient in zip((vector, matrix), gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [vector.detach(), matrix.detach()]
