"""A sample's bytes to a picture and a caption, with OpenCLIP's training augmentation; the rest is done on the device.

    decode = Decode(settings, model.visual.preprocess_cfg)      # goes to the workers
    normalise = Normalise(model.visual.preprocess_cfg).to(device)
    image, caption = decode({"jpg": jpeg, "txt": b"a cat"})     # (3, H, W), uint8 for --decode fast
    images = normalise(batch)                                   # (B, 3, H, W) float32

`--decode pil` is OpenCLIP's own transform on a Pillow picture, whole. `--decode fast` draws the same crop and colours
from the same random state, but decodes JPEG with torchvision, resizes bytes instead of Pillow's pictures and leaves the
normalisation to the device, to which a quarter of the bytes is copied. Pixels differ by rounding, by 2 of 255 at most
unless colours are jittered. `python -m benchmarks.data` measures both beside OpenCLIP's pipeline: fast takes about 1 ms
a picture of 256 px and 2 ms of 512. Augmentation draws from torch's global generator and from `random`: seed both.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import Compose, Normalize, RandomResizedCrop
from torchvision.transforms.v2 import functional as F

from data_prep.errors import DataError
from data_prep.jpeg import NoDecoderError, check_decoder, decode_plain_jpeg
from data_prep.shards import PICTURES, decode_image
from training.settings import Settings, SettingsError

CAPTION = "txt"


class Decode:
    """The decoder of a run. It can be pickled, and holds no state of its own.

    Args:
        settings: `decode` and `aug_cfg` are read.
        preprocess_cfg: `model.visual.preprocess_cfg`; its size may be one number or (H, W).

    Raises:
        SettingsError: an augmentation setting that OpenCLIP's transform would ignore, `use_timm` with --decode fast,
            or a torchvision without a JPEG decoder.
    """

    def __init__(self, settings: Settings, preprocess_cfg: Mapping[str, Any]) -> None:
        self.fast = settings.decode == "fast"
        check_used(settings.aug_cfg, self.fast)
        self.transform = _open_clip_transform(settings.aug_cfg, preprocess_cfg)
        if self.fast:
            self.transform = _BytesTransform(self.transform)
            _check_jpeg_decoder()

    def __call__(self, sample: Mapping[str, Any]) -> tuple[Tensor, str]:
        """The picture (3, H, W), uint8 for fast and normalised float32 for pil, and the caption.

        Args:
            sample: bytes by suffix. The first of jpg, jpeg, png, webp and the txt are used, nothing else is looked at.

        Raises:
            DataError: the reason alone, from a small set, so that bad samples can be counted by it.
        """
        data = next((sample[suffix] for suffix in PICTURES if suffix in sample), None)
        if data is None:
            raise DataError(f"no picture ({', '.join(PICTURES)})")
        if CAPTION not in sample:
            raise DataError(f"no caption ({CAPTION})")
        try:
            caption = sample[CAPTION].decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError("caption is not UTF-8") from error
        return self.transform(self._picture(data)), caption

    def _picture(self, data: bytes) -> Tensor | Image.Image:
        """An upright RGB picture: (3, H, W) uint8 for fast, Pillow's for pil."""
        if self.fast and (pixels := decode_plain_jpeg(data)) is not None:
            return pixels
        try:
            image = decode_image(data)
        except DataError as error:
            raise DataError("not a readable picture") from error
        return F.pil_to_tensor(image) if self.fast else image


class Normalise(nn.Module):
    """What is left to do on the device: bytes to OpenCLIP's normalised input. Mean and standard deviation are buffers.

    Args:
        preprocess_cfg: `model.visual.preprocess_cfg`.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, preprocess_cfg: Mapping[str, Any]) -> None:
        super().__init__()
        for name in ("mean", "std"):
            value = torch.tensor(preprocess_cfg[name], dtype=torch.float32).expand(3).reshape(3, 1, 1)
            self.register_buffer(name, value.clone(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(..., 3, H, W) uint8 → float32, (x/255 - mean)/std, the bits of OpenCLIP's own; floats pass as they are."""
        if images.is_floating_point():
            return images
        return images.float().div_(255).sub_(self.mean).div_(self.std)


def check_used(aug_cfg: Mapping[str, Any], fast: bool) -> None:
    """Raise SettingsError for an augmentation setting that OpenCLIP's transform would pass over.

    It builds its own transform, or timm's with `use_timm`; each knows only some of the settings.
    """
    given = {key for key, value in aug_cfg.items() if value is not None}
    use_timm = bool(aug_cfg.get("use_timm"))
    if use_timm and fast:
        raise SettingsError("aug_cfg use_timm=true needs --decode pil: timm's transforms work on Pillow's pictures")
    timm_only, own_only = {"ratio", "re_prob", "re_count"}, {"color_jitter_prob", "gray_scale_prob"}
    if unused := sorted(given & (own_only if use_timm else timm_only)):
        way_out = "without use_timm" if use_timm else "with use_timm=true, which needs --decode pil"
        raise SettingsError(f"aug_cfg {', '.join(unused)} would be ignored: OpenCLIP has it only {way_out}")
    if "color_jitter" in given and not use_timm and "color_jitter_prob" not in given:
        raise SettingsError("aug_cfg color_jitter would be ignored: give color_jitter_prob beside it")


def _open_clip_transform(aug_cfg: dict[str, Any], preprocess_cfg: Mapping[str, Any]) -> Any:
    cfg = PreprocessCfg(**preprocess_cfg)
    if not isinstance(cfg.size, int):
        cfg.size = tuple(cfg.size)  # timm's transform adds it to a tuple
    with warnings.catch_warnings():  # it also names settings that it does use; check_used has found the others
        warnings.filterwarnings("ignore", message="Unused augmentation cfg items")
        return image_transform_v2(cfg, is_train=True, aug_cfg=aug_cfg)


class _BytesTransform:
    """OpenCLIP's training transform on (3, H, W) uint8: its own steps, but for the resize and the normalisation.

    Its colour steps take tensors as they are. Its crop would go through float32, at four times the cost.
    """

    def __init__(self, transform: Compose) -> None:
        crop, *colours, normalise = transform.transforms
        if not isinstance(crop, RandomResizedCrop) or not isinstance(normalise, Normalize):
            raise SettingsError(f"--decode fast does not know this OpenCLIP's transform, use --decode pil: {transform}")
        self.crop, self.colours = crop, colours

    def __call__(self, image: Tensor) -> Tensor:
        box = self.crop.get_params(image, self.crop.scale, self.crop.ratio)
        image = F.resized_crop(image, *box, self.crop.size, interpolation=self.crop.interpolation, antialias=True)
        for step in self.colours:
            image = step(image)
        return image


def _check_jpeg_decoder() -> None:
    """Without it every JPEG would go through Pillow in silence."""
    try:
        check_decoder()
    except NoDecoderError as error:
        raise SettingsError(
            f"--decode fast needs torchvision's decode_jpeg: {error}; use --decode pil, or another torchvision"
        ) from error
