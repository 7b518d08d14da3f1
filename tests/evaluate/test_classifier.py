"""Class weights: OpenCLIP's own builder to rounding, whatever tower; texts cut at their end are the whole texts."""

import logging
from collections.abc import Sequence

import open_clip
import pytest
import torch
from torch import nn

import open_clip_linear  # noqa: F401 -- registers the kinds
from evaluate import texts
from evaluate.classifier import class_weights
from evaluate.encode import full_float32
from evaluate.errors import RefusedError
from evaluate.texts import encode_texts

CPU = torch.device("cpu")
CONTEXT = 24
NAMES = [
    "goldfish",
    "great white shark",
    "missile",
    "a name of words that takes up most of the context",
    "missile",
]
TEMPLATES = ["{}", "a photo of a {}.", "a bad picture of the {}."]
KINDS = ["softmax", "eq4", "eq4:gain=half_n", "eq7", "eq7:scale=mean", "eq7:scale=learned", "sema:window=7", "inline"]


def model_of(text: dict[str, object], **config: object) -> nn.Module:
    """A small model with that text tower, whose features differ from text to text."""
    torch.manual_seed(0)
    base = {"context_length": CONTEXT, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16}
    arguments = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": base | text} | config
    custom = arguments.pop("custom_text", False)
    model = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**arguments)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=0.3)
    return model.eval()


@pytest.fixture
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several batches and several blocks even of a few prompts."""
    monkeypatch.setattr(texts, "TOKENS", 60)


@pytest.fixture
def lengths_seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each pass through a text transformer had."""
    seen: list[int] = []
    forward = open_clip.transformer.Transformer.forward

    def counted(self: nn.Module, x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        seen.append(x.shape[1])
        return forward(self, x, *args, **kwargs)

    monkeypatch.setattr(open_clip.transformer.Transformer, "forward", counted)
    return seen


def tokenizer(words: Sequence[str]) -> torch.Tensor:
    return open_clip.tokenize(list(words), context_length=CONTEXT)


TOWERS = {
    **{kind: ({"block_type": kind}, {}) for kind in KINDS},
    "stock": ({}, {}),
    "custom text": ({}, {"custom_text": True}),
    "custom text, end token": ({"pool_type": "eos", "eos_id": 49407}, {"custom_text": True}),
    "not causal": ({"no_causal_mask": True}, {"custom_text": True}),
    "last token": ({"pool_type": "last"}, {"custom_text": True}),
    "class token": ({"embed_cls": True}, {"custom_text": True}),
    "class token of sema": ({"embed_cls": True, "block_type": "sema"}, {"custom_text": True}),
}
CUT = [name for name in TOWERS if name not in ("not causal", "last token", "class token", "class token of sema")]


@pytest.mark.usefixtures("few_tokens")
@pytest.mark.parametrize("name", TOWERS)
def test_equals_openclips_builder(name: str, lengths_seen: list[int], caplog: pytest.LogCaptureFixture) -> None:
    text, config = TOWERS[name]
    model = model_of(text, **config)
    theirs = open_clip.build_zero_shot_classifier(model, tokenizer, NAMES, TEMPLATES)
    lengths_seen.clear()
    with full_float32(model), caplog.at_level(logging.WARNING):
        ours = class_weights(model, tokenizer, NAMES, TEMPLATES, device=CPU)
    assert ours.shape == (16, 5)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert torch.equal(ours[:, 2], ours[:, 4]), "classes of one name tie to the bit"
    whole = CONTEXT + ("class token" in name)
    assert (min(lengths_seen[1:]) < whole) == (name in CUT)
    assert not caplog.text


def test_a_text_does_not_depend_on_the_others_beside_it() -> None:
    """Neither on the longest of its batch nor on how many there are; the order is that of the texts."""
    for kind in KINDS:
        model = model_of({"block_type": kind})
        words = [template.format(name) for name in NAMES for template in TEMPLATES]
        with full_float32(model):
            together = encode_texts(model, tokenizer, words, device=CPU)
            alone = torch.cat([encode_texts(model, tokenizer, [word], device=CPU) for word in words])
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_what_stands_after_the_end_has_no_say() -> None:
    """The cut and the padding: other tokens after the end of text change nothing at all."""
    for kind in KINDS:
        model = model_of({"block_type": kind})
        tokens = tokenizer(NAMES)
        other = torch.where(tokens == 0, torch.randint(1, 40_000, tokens.shape), tokens)
        with full_float32(model):
            both = [encode_texts(model, lambda _, t=t: t, NAMES[:4], device=CPU) for t in (tokens[:4], other[:4])]
        torch.testing.assert_close(both[0], both[1], atol=1e-6, rtol=0)


def test_a_tower_that_looks_back_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """A tower of causal form whose features do depend on later tokens goes through whole, with one warning."""
    model = model_of({})
    model.transformer.register_forward_hook(lambda module, args, out: out + out.mean(dim=1, keepdim=True))
    with torch.no_grad():
        theirs = model.encode_text(tokenizer(NAMES), normalize=True)
    with full_float32(model):
        ours = encode_texts(model, tokenizer, NAMES, device=CPU)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert caplog.text.count("encoding them whole") == 1


def test_weights_that_are_no_numbers_are_refused() -> None:
    model = model_of({})
    with torch.no_grad():
        model.text_projection.fill_(float("nan"))
    with full_float32(model), pytest.raises(RefusedError, match="64 of 64 numbers of the text features are NaN"):
        class_weights(model, tokenizer, NAMES, TEMPLATES, device=CPU)


def test_blocks_of_classes_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from evaluate import classifier

    model = model_of({})
    told: list[int] = []
    with full_float32(model):
        whole = class_weights(model, tokenizer, NAMES, TEMPLATES, device=CPU, advance=told.append)
        monkeypatch.setattr(classifier, "BLOCK", 7)
        parts = class_weights(model, tokenizer, NAMES, TEMPLATES, device=CPU)
    torch.testing.assert_close(whole, parts, atol=1e-6, rtol=0)
    assert sum(told) == 4 * 3
