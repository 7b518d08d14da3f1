"""The model of a run: built by OpenCLIP from its config, spread over the processes, and its moving average.

    model = build(settings, device)              # the same on every process, from the same seed
    replica = parallel(model, settings, world)   # what the loop calls; `model` stays the module that holds the weights

torch.compile works on the blocks of the towers, in place: it composes with DistributedDataParallel, FSDP2 and gradient
checkpointing, leaves the names of a state dict as they are, and compiles one block for all of the same kind.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import open_clip
import torch
from open_clip.modified_resnet import ModifiedResNet
from open_clip.transformer import to_2tuple
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import get_ema_multi_avg_fn

import open_clip_linear  # noqa: F401 -- registers the models on import
from training.distributed import World
from training.initial import load_initial
from training.settings import Settings, SettingsError

# What OpenCLIP starts a SigLIP run with, whatever the config says (open_clip_train.main).
_SIGLIP = {"init_logit_scale": math.log(10), "init_logit_bias": -10.0}

# Graphs that torch.compile may make of one block's code; torch's own bound is 8, beyond which it computes uncompiled.
# There is one for each kind of attention, tower and kind of call (with gradients, without them in the first pass of
# accumulation, evaluation): a hybrid tower makes 9, one of three kinds 15. timm.optim lifts the bound, but by accident.
_GRAPHS = 64

_BLOCK_LISTS = ("resblocks", "blocks", "layer")  # of OpenCLIP's, timm's and Hugging Face's transformers


def build(settings: Settings, device: torch.device) -> nn.Module:
    """The model of these settings on `device` in float32, in training mode; its forward pass returns a dict.

    The weights come from torch's generators, which the caller seeds, and then from `init_from`. A config with a logit
    bias trains under CLIP's loss as well, as in OpenCLIP: its bias has no gradient there, as softmax does not see it.

    Raises:
        SettingsError: OpenCLIP cannot build it so, or `init_from` cannot be loaded into it.
    """
    size = settings.force_image_size
    arguments: dict[str, Any] = dict(_SIGLIP) if settings.siglip else {}
    if settings.fsdp:
        # FSDP2 cannot shard scalars. OpenCLIP loads a logit scale of one element and a scalar into each other.
        arguments["nonscalar_logit_scale"] = True
    try:
        model = open_clip.create_model(
            settings.model,
            device=device,
            output_dict=True,
            force_image_size=(size[0] if len(size) == 1 else tuple(size)) if size else None,
            force_patch_dropout=settings.force_patch_dropout if settings.force_patch_dropout >= 0 else None,
            **arguments,
        )
    except Exception as error:  # a config's mistakes come as every kind
        raise SettingsError(f"--model {settings.model} cannot be built: {error or type(error).__name__}") from error
    if 0 in to_2tuple(getattr(model.visual, "grid_size", None) or 1):
        raise SettingsError(f"--model {settings.model} has patches larger than pictures of {model.visual.image_size}")
    if settings.force_patch_dropout > 0 and isinstance(model.visual, ModifiedResNet):  # other towers fail above
        raise SettingsError(
            f"--force-patch-dropout does nothing with --model {settings.model}, a ResNet, which has no patches: found "
            f"{settings.force_patch_dropout}; leave it out"
        )
    if settings.init_from:
        load_initial(model, settings)
    _lock(model, settings)
    if settings.grad_checkpointing:
        model.set_grad_checkpointing()
    return model.train()


def _lock(model: nn.Module, settings: Settings) -> None:
    """Freeze the towers that are not trained, as OpenCLIP does."""
    fixed = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    if settings.lock_image:
        model.lock_image_tower(unlocked_groups=settings.lock_image_unlocked_groups)  # type: ignore[operator]
    if settings.lock_text:
        model.lock_text_tower(unlocked_layers=settings.lock_text_unlocked_layers)  # type: ignore[operator]
    for parameter in fixed:  # unlocking the first group would train sin-cos positions too
        parameter.requires_grad_(False)


def parallel(model: nn.Module, settings: Settings, world: World) -> nn.Module:
    """What the loop calls in place of `model`: itself, a DistributedDataParallel around it, or itself sharded (FSDP2).

    Gradients are means over the processes. Under FSDP2 the parameters are DTensors from here on, `encode_image` and
    `encode_text` gather them as `forward` does, and every process must take part in each call. Every process must have
    built the same weights.
    """
    if settings.torchcompile:
        limits = torch._dynamo.config
        limits.recompile_limit = max(limits.recompile_limit, _GRAPHS)
        for unit in _units(model):
            unit.compile()
    if world.size == 1:
        return model
    if settings.fsdp:
        mesh = init_device_mesh(world.device.type, (world.size,))
        for unit in _units(model):
            fully_shard(unit, mesh=mesh)
        fully_shard(model, mesh=mesh)
        _gather_for_encoders(model)
        return model
    device_ids = [world.device.index] if world.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=device_ids)


def _gather_for_encoders(model: nn.Module) -> None:
    """Let a sharded model's encoders gather its parameters, unless `forward` calls them and has gathered all.

    FSDP2's own registration does so inside `forward` too, which then frees parameters before the loss has read them.
    """
    inside = {name: getattr(model, name) for name in ("encode_image", "encode_text")}
    in_forward = False

    def enter(*_: Any) -> None:
        nonlocal in_forward
        in_forward = True

    def leave(*_: Any) -> None:
        nonlocal in_forward
        in_forward = False

    def chosen(within: Callable[..., Tensor], alone: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *args, **kwargs: (within if in_forward else alone)(*args, **kwargs)

    model.register_forward_pre_hook(enter)
    model.register_forward_hook(leave, always_call=True)
    for name, method in inside.items():
        register_fsdp_forward_method(model, name)
        setattr(model, name, chosen(method, getattr(model, name)))


def _units(model: nn.Module) -> list[nn.Module]:
    """What is compiled and sharded each as one: the towers' blocks, and an image tower without blocks as a whole."""
    found: list[nn.Module] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and name.rpartition(".")[2] in _BLOCK_LISTS:
            found += module.children()
    visual: nn.Module = model.visual  # type: ignore[assignment]
    if not set(found) & set(visual.modules()):
        found.append(visual)
    return found


class Ema:
    """Exponential moving average of the trained parameters, in float32 (float64 stays), beginning at their values.

    Buffers are not averaged: the attention's mark is text; a ResNet's running statistics stay the model's. torch's
    AveragedModel would copy the module, which FSDP2 does not allow; its averaging function is the one used.
    Cost: memory of the trained parameters (this process's share under FSDP2), one pass over them a step.

    Args:
        model: the module that holds the weights, sharded already where it is to be.
        decay: weight of the old average in a step; at least 0, below 1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._average = get_ema_multi_avg_fn(decay)
        self._shadow = {
            name: parameter.detach().clone().to(torch.promote_types(parameter.dtype, torch.float32))
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the parameters: decay·average + (1 - decay)·parameters."""
        parameters = dict(model.named_parameters())
        own = [_local(shadow) for shadow in self._shadow.values()]
        now = [_local(parameters[name].detach()) for name in self._shadow]
        self._average(own, now, 0)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by the parameters' names, whole; `model.state_dict() | ema.state_dict()` is a model's weights.

        Under FSDP2 every process must call it and gets copies on the CPU; otherwise they are the averages themselves.
        """
        return {name: t.full_tensor().cpu() if isinstance(t, DTensor) else t for name, t in self._shadow.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Set the averages, whole ones as `state_dict` gives them. Raises ValueError where they are another model's."""
        if found := sorted(set(state) ^ set(self._shadow)):
            raise ValueError(f"these averages are not of the parameters that are trained here: {', '.join(found[:3])}")
        for name, shadow in self._shadow.items():
            whole = state[name]
            if whole.shape != shadow.shape:
                raise ValueError(f"the average of {name} has shape {tuple(whole.shape)}, not {tuple(shadow.shape)}")
            if isinstance(shadow, DTensor):
                whole = distribute_tensor(whole.to(shadow.device), shadow.device_mesh, shadow.placements)
            _local(shadow).copy_(_local(whole))


def _local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
