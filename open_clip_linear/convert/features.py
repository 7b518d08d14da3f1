"""How far a model's features moved, for `python -m open_clip_linear convert`: cosine and norm, sample by sample."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn import functional as F

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
MOST_PICTURES = 64
BATCH = 8
CAPTIONS = (
    "a photo of a cat",
    "two dogs running on a beach",
    "a diagram",
    "the skyline of a city at night, seen from a bridge",
    "red",
    "a plate of pasta with tomatoes and basil on a wooden table",
    "an old map of the world",
    "people waiting for a train in the rain",
)


class ComparisonError(ValueError):
    """Pictures that cannot be read, or features that are no numbers."""


@dataclass(frozen=True)
class FeatureShift:
    """How features after a conversion lie to those before it.

    Attributes:
        cosines: of each sample's features before and after.
        norm_change: of the norms' mean, relative: 0.02 where they grew by 2 %.
        between_samples: mean cosine of the features of two different samples, before: what the other figures stand
            beside, because the features of most models share a direction.
    """

    samples: tuple[str, ...]
    cosines: tuple[float, ...]
    cosine_mean: float
    cosine_min: float
    norm_change: float
    between_samples: float | None

    @property
    def same(self) -> bool:
        """Whether both models compute the same, but for rounding."""
        return self.cosine_min > 0.99999 and abs(self.norm_change) < 1e-3


def feature_shift(samples: Sequence[str], before: Tensor, after: Tensor) -> FeatureShift:
    """Compare features of the same samples, (samples, dim) each.

    Raises:
        ComparisonError: some are NaN or infinite.
    """
    for features, when in ((before, "before"), (after, "after")):
        if not features.isfinite().all():
            raise ComparisonError(
                f"the model's features {when} the conversion are NaN or infinite, so nothing was written; the weights "
                "come from a run that diverged, or overflow in this kind: take an earlier checkpoint or another kind"
            )
    before, after = before.double(), after.double()
    cosines = F.cosine_similarity(before, after).tolist()
    count = len(before)
    gram = F.normalize(before) @ F.normalize(before).mT
    return FeatureShift(
        samples=tuple(samples),
        cosines=tuple(cosines),
        cosine_mean=sum(cosines) / count,
        cosine_min=min(cosines),
        norm_change=float(after.norm(dim=1).mean() / before.norm(dim=1).mean()) - 1,
        between_samples=float((gram.sum() - gram.trace()) / (count * (count - 1))) if count > 1 else None,
    )


def image_features(model: nn.Module, pictures: Iterable[Image.Image]) -> Tensor:
    """A model's features of pictures, preprocessed as it wants them: float32, eval mode, not normalised."""
    preprocess = image_transform_v2(PreprocessCfg(**model.visual.preprocess_cfg), is_train=False)  # type: ignore[union-attr,arg-type]
    return _features(model.encode_image, torch.stack([preprocess(picture) for picture in pictures]))  # type: ignore[arg-type]


def text_features(model: nn.Module, tokens: Tensor) -> Tensor:
    """A model's features of tokenised texts, as `image_features` gives those of pictures."""
    return _features(model.encode_text, tokens)  # type: ignore[arg-type]


@torch.no_grad()
def _features(encode: Callable[..., Tensor], inputs: Tensor) -> Tensor:
    return torch.cat([encode(batch, normalize=False) for batch in inputs.split(BATCH)])


def read_pictures(paths: Sequence[Path]) -> dict[str, Image.Image]:
    """Pictures by name, from files and from the picture files of folders; the first `MOST_PICTURES` of them.

    Raises:
        ComparisonError: no such file, a folder without pictures, or a file that is no picture.
    """
    files: list[Path] = []
    for path in paths:
        inside = sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURE_SUFFIXES) if path.is_dir() else [path]
        if not inside:
            raise ComparisonError(f"--images {path}: no picture in this folder ({', '.join(PICTURE_SUFFIXES)})")
        files += inside
    pictures = {}
    for file in files[:MOST_PICTURES]:
        try:
            with Image.open(file) as picture:
                pictures[str(file)] = picture.convert("RGB")
        except FileNotFoundError as error:
            raise ComparisonError(f"--images {file}: no such file") from error
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise ComparisonError(f"--images {file}: cannot be read as a picture: {error}") from error
    return pictures


def drawn_pictures(side: int = 256) -> dict[str, Image.Image]:
    """Eight pictures that Pillow draws, the same each time. They are no photographs, as models were trained on."""
    linear, radial = Image.linear_gradient("L"), Image.radial_gradient("L")
    fractal = Image.effect_mandelbrot((side, side), (-2.0, -1.5, 1.0, 1.5), 100)
    detail = Image.effect_mandelbrot((side, side), (-0.8, 0.05, -0.7, 0.15), 100)
    turned = linear.rotate(90)
    stripes = linear.point(lambda value: 255 * (value // 16 % 2))
    checks = Image.composite(stripes, ImageOps.invert(stripes), stripes.rotate(90))
    channels = {
        "gradients": (linear, turned, ImageOps.invert(linear)),
        "disc": (radial, radial, radial),
        "coloured disc": (radial, linear, ImageOps.invert(radial)),
        "fractal": (fractal, fractal, fractal),
        "coloured fractal": (fractal, turned, detail),
        "detail of a fractal": (detail, radial, linear),
        "stripes": (stripes, stripes, linear),
        "checks": (checks, checks, checks),
    }
    return {name: Image.merge("RGB", [band.resize((side, side)) for band in bands]) for name, bands in channels.items()}
