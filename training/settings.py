"""What a run is: every setting, its default, its bounds, and what no two of them may say together.

Names are OpenCLIP's where the meaning is the same. `training/command_line.py` fills them from a recipe and options.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_origin

import open_clip
import timm.optim
from open_clip.transform import AugmentationCfg, image_transform
from PIL import Image

from data_prep.manifest import MANIFEST
from open_clip_linear import add_model_configs
from open_clip_linear.spec import nearest

PRECISIONS = ("auto", "fp32", "amp_bf16", "amp")
SCHEDULES = ("cosine", "const", "const-cooldown")
DECODERS = ("fast", "pil")
REPORTS = ("tensorboard", "wandb")
LARGEST_SIDE = 8192  # pixels


class SettingsError(ValueError):
    """A setting that cannot be used; the message says which, what was found and what is allowed."""


def _setting(default: Any, help: str, **metadata: Any) -> Any:
    """A field with its help text; the option's name is the field's with dashes."""
    if isinstance(default, dict | list):
        return field(default_factory=lambda: type(default)(default), metadata={"help": help, **metadata})
    return field(default=default, metadata={"help": help, **metadata})


@dataclass
class Settings:
    """The resolved settings of a run. `batch_size` is per process, as in OpenCLIP."""

    # --- the run ---
    output: str = _setting("", "folder for runs")
    name: str = _setting("", "name of the run: its folder is OUTPUT/NAME (OUTPUT itself where no name is given)")
    seed: int = _setting(0, "seed of weights, sample order and augmentation", least=0, below=2**31)
    resume: str = _setting(
        "",
        "auto continues from the newest checkpoint of the run that verifies, or starts where there is none; a file "
        "continues from that checkpoint",
    )
    save_every_steps: int = _setting(0, "steps between checkpoints; 0: by time alone", least=0)
    save_every_minutes: float = _setting(30.0, "minutes between checkpoints; 0: by steps alone", least=0)
    keep: int = _setting(3, "checkpoints kept, the newest ones; 0 keeps all", least=0)
    # --- model ---
    model: str = _setting("", "name of a model config, such as ViT-B-16-eq7mean")
    model_configs: str = _setting("", "folder of further model-config JSON files that --model may name")
    init_from: str = _setting("", "checkpoint of the same kind whose weights the run starts from, at any image size")
    force_image_size: list[int] = _setting([], "image size in pixels, or height and width, instead of the config's")
    force_patch_dropout: float = _setting(-1.0, "patch dropout, if not the config's; negative: the config's", below=1)
    lock_image: bool = _setting(False, "do not train the image tower")
    lock_image_unlocked_groups: int = _setting(0, "with --lock-image: last layer groups that are trained", least=0)
    lock_text: bool = _setting(False, "do not train the text tower")
    lock_text_unlocked_layers: int = _setting(0, "with --lock-text: last layer groups that are trained", least=0)
    grad_checkpointing: bool = _setting(False, "compute activations again in the backward pass: less memory, more time")
    torchcompile: bool = _setting(False, "compile the model with torch.compile")
    fsdp: bool = _setting(False, "shard parameters, gradients and optimizer over the processes (FSDP2)")
    ema: float = _setting(0.0, "decay of a moving average of the weights, a step; 0: none", least=0, below=1)
    # --- data ---
    train_data: str = _setting(
        "",
        "manifest.jsonl or its folder, or a pattern such as 'shards/{0000..0099}.tar'; several sources joined by ::",
    )
    train_data_upsampling_factors: str = _setting(
        "", "how often each source is read in an epoch, joined by ::, such as 2::0.5 (default: once each)"
    )
    train_num_samples: int = _setting(
        0, "samples that count as one epoch in --epochs and the frequencies; 0: all there are", least=0
    )
    allow_pipe: bool = _setting(False, "let sources run commands (pipe:COMMAND); do so for sources that you trust only")
    workers: int = _setting(1, "data-loading processes per training process", least=0)
    shuffle_buffer: int = _setting(5000, "samples held back for shuffling, per worker", least=1)
    unique_key: str = _setting(
        "",
        "JSON field of a sample of which no two in a global batch may share a value (for small sets where several "
        "pictures have one caption and would count as negatives of each other); the set is held in memory, and "
        "samples that fit no batch at the end of an epoch are left out of it",
    )
    decode: str = _setting(
        "fast", "fast: torchvision's JPEG decoder and uint8 transforms; pil: OpenCLIP's own transform", allowed=DECODERS
    )
    max_bad_samples: float = _setting(
        0.001,
        "share of unreadable samples that ends the run; fewer are counted and passed over",
        least=0,
        below=1,
    )
    aug_cfg: dict[str, Any] = _setting({}, "OpenCLIP's augmentation settings, as key=value words")
    # --- optimisation ---
    epochs: float = _setting(
        0.0, "length of the run in epochs; --max-steps instead gives it in steps", least=0, below=2**31
    )
    max_steps: int = _setting(0, "length of the run in optimizer steps; the schedule ends there", least=0, below=2**31)
    batch_size: int = _setting(64, "image-text pairs per process and forward pass", least=1)
    accum_freq: int = _setting(1, "batches that make one step, with the loss of all of them together", least=1)
    opt: str = _setting("adamw", "adamw, or timm/NAME for one of timm's optimizers, such as timm/nmuon")
    lr: float = _setting(5e-4, "peak learning rate", least=0)
    wd: float = _setting(0.2, "weight decay of matrices and embeddings", least=0)
    beta1: float = _setting(0.9, "the optimizer's first-moment decay", least=0, below=1)
    beta2: float = _setting(0.98, "the optimizer's second-moment decay", least=0, below=1)
    eps: float = _setting(1e-6, "the optimizer's epsilon", least=0)
    warmup: int = _setting(100, "steps of linear warm-up, of the total", least=0)
    lr_scheduler: str = _setting("cosine", "what follows the warm-up", allowed=SCHEDULES)
    cooldown: int = _setting(0, "with const-cooldown: the last steps, in which the rate falls", least=0)
    lr_cooldown_end: float = _setting(0.0, "with const-cooldown: the learning rate at the end", least=0)
    lr_cooldown_power: float = _setting(1.0, "with const-cooldown: power of the fall; 1 is linear", least=0)
    grad_clip_norm: float = _setting(0.0, "clip the gradient's norm to this; 0 does not clip", least=0)
    precision: str = _setting(
        "auto",
        "amp is float16 with loss scaling, amp_bf16 bfloat16; auto is amp_bf16 where the hardware has it, else fp32",
        allowed=PRECISIONS,
    )
    # --- loss ---
    siglip: bool = _setting(False, "SigLIP's sigmoid loss instead of CLIP's")
    gather_with_grad: bool = _setting(True, "gradients through the gathered features: the joint batch's, exactly")
    local_loss: bool = _setting(False, "each process computes its own rows of the logits: memory linear in processes")
    distill_model: str = _setting("", "teacher's model config: OpenCLIP's distillation loss")
    distill_pretrained: str = _setting("", "teacher's weights: a checkpoint file or an OpenCLIP tag")
    # --- guards ---
    max_bad_steps: int = _setting(
        20, "steps in a row with a non-finite loss or gradient after which the run ends; fewer are skipped", least=0
    )
    spike_rollback: bool = _setting(
        False, "after a loss spike go back to the last checkpoint and on with the data that follows the spike"
    )
    # --- evaluation inside the run ---
    zeroshot_frequency: float = _setting(1.0, "epochs between evaluations; 0: none", least=0)
    imagenet_val: str = _setting("", "ImageNet's validation folder, for zero-shot accuracy inside the run")
    val_data: str = _setting("", "manifest.jsonl of held-out pairs, or its folder, for retrieval inside the run")
    # --- what is shown and written ---
    log_every_n_steps: int = _setting(10, "steps between lines where there is no terminal", least=1)
    report_to: str = _setting("", "tensorboard, wandb or both with a comma, beside metrics.jsonl")
    wandb_project_name: str = _setting("open-clip", "wandb's project")


# What nothing hears under other settings: it may only have its default there.
_UNHEARD: tuple[tuple[str, Callable[[Settings], bool], str], ...] = (
    ("lock_image_unlocked_groups", lambda s: not s.lock_image, "without --lock-image"),
    ("lock_text_unlocked_layers", lambda s: not s.lock_text, "without --lock-text"),
    ("lr_cooldown_end", lambda s: s.lr_scheduler != "const-cooldown", "without --lr-scheduler const-cooldown"),
    ("lr_cooldown_power", lambda s: s.lr_scheduler != "const-cooldown", "without --lr-scheduler const-cooldown"),
    ("shuffle_buffer", lambda s: bool(s.unique_key), "with --unique-key, which holds the set and shuffles all of it"),
    (
        "zeroshot_frequency",
        lambda s: s.zeroshot_frequency > 0 and not (s.imagenet_val or s.val_data),
        "without --imagenet-val or --val-data",
    ),
    ("wandb_project_name", lambda s: "wandb" not in s.report_to, "without --report-to wandb"),
)

FIELDS = {f.name: f for f in fields(Settings)}
KINDS: dict[str, type] = {  # a field's type, without what is in brackets
    name: f.type if isinstance(f.type, type) else get_origin(f.type) or str for name, f in FIELDS.items()
}


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def check(settings: Settings) -> None:
    """Raise SettingsError for the first setting that cannot work."""
    for name in FIELDS:
        _check_value(settings, name)
    for name in ("model", "train_data", "output"):
        if not getattr(settings, name):
            raise SettingsError(f"{option(name)} is missing: give it as an option or in the recipe")
    if "/" in settings.name or settings.name == "..":
        raise SettingsError(
            f"--name must be a plain name, as the run's folder is OUTPUT/NAME: found {settings.name!r}; give the path "
            "before it as --output"
        )
    _check_length(settings)
    _check_model(settings)
    _check_optimizer(settings)
    _check_together(settings)
    check_augmentation(settings.aug_cfg)


def _check_value(settings: Settings, name: str) -> None:
    """Type, finiteness and bounds of one setting; an integer where a float is wanted becomes one."""
    value, kind, bounds = getattr(settings, name), KINDS[name], FIELDS[name].metadata
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 1e300 else math.inf
        setattr(settings, name, value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        word = "a table" if kind is dict else kind.__name__
        raise SettingsError(f"{name} must be {word}, found {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(f"{name} must be a finite number, found {value!r}")
    below, least, allowed = bounds.get("below"), bounds.get("least"), bounds.get("allowed")
    if below is not None and not value < below:
        raise SettingsError(f"{name} must be less than {below}, found {value!r}")
    if least is not None and not value >= least:
        raise SettingsError(f"{name} must be at least {least}, found {value!r}")
    if allowed and value not in allowed:
        raise SettingsError(f"{name} must be one of {', '.join(allowed)}, found {value!r}")


def _check_length(settings: Settings) -> None:
    if bool(settings.max_steps) == bool(settings.epochs):
        found = "both" if settings.max_steps else "neither"
        raise SettingsError(f"give the run's length as --max-steps or as --epochs, found {found}")
    if settings.max_steps and settings.warmup + settings.cooldown > settings.max_steps:
        raise SettingsError(
            f"warmup ({settings.warmup}) and cooldown ({settings.cooldown}) must not exceed max_steps "
            f"({settings.max_steps})"
        )


def _check_model(settings: Settings) -> None:
    if settings.model_configs:
        try:
            add_model_configs(Path(settings.model_configs))
        except ValueError as error:
            raise SettingsError(f"--model-configs: {error}") from error
    for name in ("model", "distill_model"):
        model = getattr(settings, name)
        if model and model not in open_clip.list_models():
            raise SettingsError(f"{option(name)} {model!r} is unknown{nearest(model, open_clip.list_models())}")
    if "multimodal_cfg" in open_clip.get_model_config(settings.model):
        raise SettingsError(f"--model {settings.model!r} is a CoCa model; this trainer has no captioning loss")
    sides = settings.force_image_size
    if len(sides) > 2 or not all(type(n) is int and 0 < n <= LARGEST_SIDE for n in sides):
        raise SettingsError(
            f"force_image_size must be one or two sizes in pixels, each from 1 to {LARGEST_SIDE}, found {sides}"
        )
    _check_unlocked(settings, "lock_image_unlocked_groups", "vision_cfg")
    _check_unlocked(settings, "lock_text_unlocked_layers", "text_cfg")


def _check_unlocked(settings: Settings, name: str, tower: str) -> None:
    """Raise SettingsError where OpenCLIP's own tower has fewer groups; it would train all of them without a word."""
    config = open_clip.get_model_config(settings.model)[tower]
    if "timm_model_name" in config or "hf_model_name" in config:
        return
    layers = config.get("layers", 12)  # OpenCLIP's default; of a ResNet a list, which cannot be unlocked in part
    groups = layers + 2 if isinstance(layers, int) else 0  # the embeddings before the layers, the projection after them
    if getattr(settings, name) > groups:
        raise SettingsError(
            f"{option(name)} must be at most {groups} with --model {settings.model}, which has no more groups to "
            f"unlock: found {getattr(settings, name)}"
        )


def _check_optimizer(settings: Settings) -> None:
    optimizers = ["adamw", *(f"timm/{name}" for name in timm.optim.list_optimizers())]
    if settings.opt not in optimizers:
        raise SettingsError(f"--opt {settings.opt!r} is unknown{nearest(settings.opt, optimizers)}")
    for name in sorted({"beta1", "beta2", "eps"} - heard_by(settings.opt)):
        value, default = getattr(settings, name), FIELDS[name].default
        if value != default:
            raise SettingsError(
                f"{option(name)} does nothing with --opt {settings.opt}, which has its own or none: found {value!r}; "
                f"leave it out or at {default!r}"
            )
    if (settings.lr_scheduler == "const-cooldown") != bool(settings.cooldown):
        raise SettingsError(
            "--lr-scheduler const-cooldown and --cooldown STEPS go together, found "
            f"{settings.lr_scheduler} and {settings.cooldown}"
        )


def heard_by(opt: str) -> set[str]:
    """Which of beta1, beta2 and eps an optimizer takes: a known name for `opt`.

    Optimizers with three betas (Adan) mean other things by them, and keep their own.
    """
    if opt == "adamw":
        return {"beta1", "beta2", "eps"}
    info = timm.optim.get_optimizer_info(opt.removeprefix("timm/"))
    heard = {"eps"} if info.has_eps else set()
    if info.has_betas and info.num_betas == 2:
        heard |= {"beta1"} if info.opt_class is timm.optim.Adafactor else {"beta1", "beta2"}  # it decays by a schedule
    return heard


def _check_together(settings: Settings) -> None:
    """What no two settings may say together."""
    if bool(settings.distill_model) != bool(settings.distill_pretrained):
        raise SettingsError("--distill-model and --distill-pretrained go together: a teacher has weights")
    if settings.distill_model and settings.siglip:
        raise SettingsError("--distill-model cannot go with --siglip: OpenCLIP's distillation loss is CLIP's")
    if settings.siglip and (settings.local_loss or not settings.gather_with_grad):
        raise SettingsError("--local-loss and --no-gather-with-grad are for CLIP's loss; --siglip has neither")
    for name, unheard, where in _UNHEARD:
        value, default = getattr(settings, name), FIELDS[name].default
        if value != default and unheard(settings):
            raise SettingsError(f"{option(name)} does nothing {where}: found {value!r}; leave it out or at {default!r}")
    if not settings.save_every_steps and not settings.save_every_minutes:
        raise SettingsError(
            "--save-every-steps and --save-every-minutes are both 0: a killed run would have no checkpoint to go on "
            "from; give one of them"
        )
    if (settings.imagenet_val or settings.val_data) and not settings.zeroshot_frequency:
        raise SettingsError("--zeroshot-frequency 0 leaves out the evaluation that --imagenet-val or --val-data names")
    if settings.val_data and Path(settings.val_data).is_file() and Path(settings.val_data).name != MANIFEST:
        raise SettingsError(f"--val-data must be a {MANIFEST} or its folder, found {settings.val_data!r}")
    for report in settings.report_to.split(",") if settings.report_to else ():
        if report not in REPORTS:
            raise SettingsError(f"--report-to {report!r} is unknown; known: {', '.join(REPORTS)}")


def check_augmentation(aug_cfg: dict[str, Any]) -> None:
    """Raise SettingsError where OpenCLIP could not build its training transform from `aug_cfg`."""
    known = [f.name for f in fields(AugmentationCfg)]
    for key in aug_cfg:
        if key not in known:
            raise SettingsError(f"aug_cfg: unknown key {key!r}{nearest(key, known)}; known: {', '.join(known)}")
    try:
        image_transform(8, is_train=True, aug_cfg=aug_cfg)(Image.new("RGB", (16, 16)))
    except Exception as error:  # torchvision and timm raise many kinds for values they cannot use
        reason = str(error).strip() or type(error).__name__
        raise SettingsError(f"aug_cfg {aug_cfg} cannot be used by OpenCLIP: {reason}") from error
