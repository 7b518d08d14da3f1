"""A model small enough for float64 gradients in milliseconds, and CLIP's losses written out by hand."""

import json
from pathlib import Path

import torch

from open_clip_linear import add_model_configs

PIXELS, CONTEXT, VOCABULARY = 32, 8, 50


def config(**vision):
    vision = {"image_size": PIXELS, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8} | vision
    text = {"context_length": CONTEXT, "vocab_size": VOCABULARY, "width": 32, "heads": 2, "layers": 2}
    return {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}


CONFIGS = {
    "grad-eq7": config(block_type="eq7:scale=mean"),
    "grad-softmax": config(),
    "grad-dropout": config(block_type="eq7:scale=mean", patch_dropout=0.5),
    "grad-fixed": config(block_type="eq7:scale=mean", pos_embed_type="sin_cos_2d"),
    "grad-hybrid": config(block_type="eq7+sema:window=2+softmax", layers=3),
    "grad-resnet": config(layers=[1, 1, 1, 1]),
    "grad-wide": config(block_type="eq7:scale=mean", image_size=[16, 56]),
    "grad-teacher": config() | {"embed_dim": 24},
    "grad-bias": config(block_type="eq7:scale=mean") | {"init_logit_bias": -10.0},
}


def register(folder: Path) -> None:
    """Let OpenCLIP know the configs above."""
    folder.mkdir(exist_ok=True)
    for name, content in CONFIGS.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    add_model_configs(folder)


def batch(size: int, seed: int = 0):
    """float64 pictures and tokens; the last token is the largest, which the text tower takes as the end."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 3, PIXELS, PIXELS, dtype=torch.float64, generator=generator)
    texts = torch.randint(1, VOCABULARY - 1, (size, CONTEXT), generator=generator)
    texts[:, -1] = VOCABULARY - 1
    return images, texts


def unit(features):
    return features / features.square().sum(1, keepdim=True).sqrt()


def log_softmax(logits):
    top = logits.max(1, keepdim=True).values.detach()
    return logits - top - (logits - top).exp().sum(1, keepdim=True).log()


def features(model, batches):
    """Normalised features of all batches, computed one batch after the other with gradients."""
    parts = [(model.encode_image(images), model.encode_text(texts)) for images, texts in batches]
    return [unit(torch.cat(side)) for side in zip(*parts, strict=True)]


def written_out(kind, model, batches, teacher=None):
    """The loss of all batches as one, from its definition."""
    images, texts = features(model, batches)
    logits = model.logit_scale.exp() * images @ texts.T
    count = len(logits)
    if kind == "siglip":
        logits = logits + model.logit_bias
        signs = 2 * torch.eye(count, dtype=logits.dtype) - 1
        return (1 + (-signs * logits).exp()).log().sum() / count
    rows, columns = log_softmax(logits), log_softmax(logits.T)
    loss = -(rows.diag().sum() + columns.diag().sum()) / count / 2
    if kind == "distill":
        with torch.no_grad():
            images, texts = features(teacher, batches)
            wanted = teacher.logit_scale.exp() * images @ texts.T
        targets = log_softmax(wanted).exp(), log_softmax(wanted.T).exp()
        loss = loss - ((targets[0] * rows).sum() + (targets[1] * columns).sum()) / count / 2
    return loss


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_close(found, wanted):
    assert set(found) == set(wanted)
    for name, gradient in wanted.items():
        difference = (found[name].reshape(gradient.shape) - gradient).abs().max()
        assert difference <= 1e-9 * gradient.abs().max() + 1e-12, (name, difference)
