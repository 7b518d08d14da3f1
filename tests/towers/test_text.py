"""The seam into OpenCLIP's text towers: causal and not, with OpenCLIP's key padding, in CLIP, CoCa and alone."""

import copy
from functools import partial

import open_clip
import open_clip.coca_model
import pytest
import torch
from open_clip.transformer import TextTransformer

from open_clip_linear import KINDS, KindMismatchError, SpecError
from open_clip_linear.attention import naive
from open_clip_linear.checkpoint import MARK

VISION = {"image_size": 16, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8}
TEXT = {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}


def sema(q, k, v, window, suffix=0, causal=True, valid=None, local="softmax"):
    return naive.sema(q, k, v, (1, q.shape[-2] - suffix), 0, window, local, suffix, causal, valid)


SPECS = {
    "softmax": naive.softmax,
    "eq4": naive.eq4,
    "eq4:gain=half_n": partial(naive.eq4, gain="half_n"),
    "eq7": naive.eq7,
    "eq7:scale=mean": partial(naive.eq7, scale="mean"),
    "eq7:scale=learned": partial(naive.eq7, scale="learned", log_gain=torch.zeros(2, dtype=torch.float64)),
    "sema:window=5": partial(sema, window=5),
    "sema:window=4,local=eq7": partial(sema, window=4, local="eq7"),
    "inline": naive.inline,
}


def clip(spec, vision=None, cls=open_clip.CLIP, **text):
    config = {"embed_dim": 16, "vision_cfg": VISION, "text_cfg": TEXT | {"block_type": spec} | text}
    return cls(**copy.deepcopy(config | ({"vision_cfg": VISION | vision} if vision else {})))


def texts(B=3, N=12):
    """Token ids that end in the highest one, as CLIP's do, then zeros."""
    ids = torch.randint(1, 49406, (B, N))
    for row, length in zip(ids, range(N, 2, -3), strict=False):
        row[length - 1] = 49407
        row[length:] = 0
    return ids


def block_stack(transformer, x, attend):
    """A transformer written out around a naive kernel."""
    for block in transformer.resblocks:
        B, N, C = x.shape
        q, k, v = (block.ln_1(x) @ block.attn.in_proj_weight.mT + block.attn.in_proj_bias).chunk(3, dim=-1)
        q, k, v = (t.view(B, N, 2, C // 2).transpose(1, 2) for t in (q, k, v))
        x = x + block.attn.out_proj(attend(q, k, v).transpose(1, 2).reshape(B, N, C))
        x = x + block.mlp(block.ln_2(x))
    return x


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("spec", SPECS)
def test_clip_text_equals_the_float64_reference_with_its_gradients(spec, causal):
    model = clip(spec, no_causal_mask=not causal).double()
    ids = texts()
    x = block_stack(
        model.transformer,
        model.token_embedding(ids) + model.positional_embedding,
        partial(SPECS[spec], causal=causal),
    )
    expected = model.ln_final(x)[torch.arange(3), ids.argmax(-1)] @ model.text_projection
    found = model.encode_text(ids)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
    parameters = {n: p for n, p in model.named_parameters() if not n.startswith(("visual.", "logit_scale"))}
    # The learned gain of the reference is a constant.
    parameters = {n: p for n, p in parameters.items() if not n.endswith("log_gain")}
    cotangent = torch.randn_like(found)
    gradients = [torch.autograd.grad(f, parameters.values(), cotangent) for f in (found, expected)]
    for name, ours, theirs in zip(parameters, *gradients, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-9), name


@pytest.mark.parametrize("correct_cls_mask", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("spec", SPECS)
def test_a_class_token_and_padding_equal_the_reference(spec, causal, correct_cls_mask):
    """CoCa's text tower: a class token at the end, and padding masked. The older mask is shifted by one, as there."""
    tower = TextTransformer(
        **TEXT, output_dim=16, embed_cls=True, no_causal_mask=not causal, block_type=spec,
        correct_cls_mask=correct_cls_mask,
    ).double()  # fmt: skip
    ids = texts()
    own = torch.ones(3, 1, dtype=torch.bool)
    valid = torch.cat([ids != 0, own] if correct_cls_mask else [own, ids != 0], dim=1)
    attend = partial(SPECS[spec], causal=causal, valid=valid)
    if spec.startswith("sema"):
        attend = partial(attend, suffix=1)
    x = torch.cat([tower.token_embedding(ids), tower.cls_emb.expand(3, 1, -1)], dim=1) + tower.positional_embedding
    x = block_stack(tower.transformer, x, attend)
    assert torch.allclose(tower(ids), tower.ln_final(x[:, -1]) @ tower.text_projection, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spec", SPECS)
def test_key_padding_without_a_class_token(spec):
    tower = TextTransformer(
        **TEXT, output_dim=16, no_causal_mask=True, use_pad_mask=True, pool_type="first", block_type=spec
    ).double()
    ids = texts()
    x = tower.token_embedding(ids) + tower.positional_embedding
    x = block_stack(tower.transformer, x, partial(SPECS[spec], causal=False, valid=ids != 0))
    assert torch.allclose(tower(ids), tower.ln_final(x)[:, 0] @ tower.text_projection, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"no_causal_mask": True}, {"embed_cls": True, "correct_cls_mask": True}])
def test_softmax_equals_stock_from_the_same_weights(options):
    stock, ours = (TextTransformer(**TEXT | options, output_dim=16, block_type=b) for b in (None, "softmax"))
    ours.load_state_dict(stock.state_dict())
    ids = texts()
    assert torch.allclose(ours(ids), stock(ids), atol=2e-6)


@pytest.mark.parametrize("embed_cls", [True, False])
@pytest.mark.parametrize("spec", SPECS)
def test_a_later_word_changes_no_earlier_output(spec, embed_cls):
    """Through the whole tower, bit for bit, for every cut."""
    tower = TextTransformer(**TEXT, embed_cls=embed_cls, output_tokens=True, block_type=spec, pool_type="none")
    ids = torch.randint(1, 49408, (2, 12))
    _, before = tower(ids)
    for cut in range(1, 12):
        other = ids.clone()
        other[:, cut:] = torch.randint(1, 49408, (2, 12 - cut))
        _, after = tower(other)
        assert torch.equal(before[:, :cut], after[:, :cut])
        assert not torch.equal(before[:, cut:], after[:, cut:])


@pytest.mark.parametrize("spec", SPECS)
def test_padding_changes_nothing(spec):
    """What the padded positions hold (here: a longer context's position embeddings) changes no feature, bit for bit."""
    tower = TextTransformer(**TEXT, embed_cls=True, correct_cls_mask=True, block_type=spec)
    ids = texts()
    before = tower(ids)
    tower.positional_embedding.data[9:12] += 7  # padding in the second and third text only
    after = tower(ids)
    assert torch.equal(before[1:], after[1:])
    assert not torch.equal(before[:1], after[:1])


@pytest.mark.parametrize("spec", SPECS)
def test_traces_as_openclip_traces(spec):
    model = clip(spec, vision={"block_type": spec}).eval()
    model.visual.image_size = 16  # as a number, which OpenCLIP's tracing takes it for
    traced = open_clip.model.trace_model(model, batch_size=2)
    image, ids = torch.randn(3, 3, 16, 16), texts()
    for found, expected in zip(traced(image, ids), model(image, ids), strict=True):
        assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("spec", SPECS)
def test_a_text_of_nothing_yet(spec):
    """CoCa's decoder may be given no token at all."""
    model = coca(spec).eval()
    assert model.text_decoder(torch.randn(1, 5, 32), torch.zeros(1, 0, 32)).shape[:2] == (1, 0)


def test_towers_have_kinds_of_their_own():
    model = clip("inline", vision={"block_type": "eq7"})
    weights = model.state_dict()
    assert bytes(weights[f"transformer.{MARK}"].tolist()) == b"inline"
    assert bytes(weights[f"visual.transformer.{MARK}"].tolist()) == b"eq7"
    for strict in (True, False):
        with pytest.raises(KindMismatchError, match=r"under 'transformer' .*'inline'.*'eq4'"):
            clip("eq4", vision={"block_type": "eq7"}).load_state_dict(weights, strict=strict)
        with pytest.raises(KindMismatchError, match=r"under 'transformer' .*'inline'.*'softmax'"):
            clip(None, vision={"block_type": "eq7"}).load_state_dict(weights, strict=strict)
    custom = open_clip.model.convert_to_custom_text_state_dict(weights)
    clip("inline", vision={"block_type": "eq7"}, cls=open_clip.CustomTextCLIP).load_state_dict(custom)
    with pytest.raises(KindMismatchError, match=r"under 'text\.transformer'"):
        clip("eq4", vision={"block_type": "eq7"}, cls=open_clip.CustomTextCLIP).load_state_dict(custom)


def coca(spec):
    vision = VISION | {"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True, "block_type": spec}
    text = TEXT | {"embed_cls": True, "output_tokens": True, "block_type": spec}
    decoder = TEXT | {"attn_pooler_heads": 2, "block_type": spec}
    model = open_clip.CoCa(embed_dim=32, vision_cfg=vision, text_cfg=text, multimodal_cfg=decoder)
    torch.nn.init.normal_(model.text_decoder.text_projection)  # OpenCLIP leaves it to whatever memory holds
    return model


@pytest.mark.parametrize("spec", SPECS)
def test_all_three_transformers_of_coca(spec):
    model = coca(spec)
    for transformer in (model.visual.transformer, model.text.transformer, model.text_decoder):
        assert {str(block.attn.kind) for block in transformer.resblocks} == {spec.partition(":")[0]}
    out = model(torch.randn(2, 3, 16, 16), torch.randint(1, 49407, (2, 12)))
    sum(t.square().sum() for t in out.values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    assert model.text_decoder.resblocks[0].attn.in_proj_weight.grad.abs().max() > 0
    # A decoder of softmax would take such weights for its own.
    if spec != "softmax":
        with pytest.raises(KindMismatchError):
            coca("softmax").load_state_dict(model.state_dict())
    coca(spec).load_state_dict(model.state_dict())


@pytest.mark.parametrize("spec", ["softmax", "eq7:scale=mean"])
def test_the_decoder_of_coca_generates_without_looking_ahead(spec):
    """Logits of a growing text stay as they were."""
    model = coca(spec).eval()
    with torch.no_grad():
        image_embs = model.visual(torch.randn(1, 3, 16, 16))[1]
        tokens = torch.randn(1, 12, 32)
        long = model.text_decoder(image_embs, tokens)
        short = model.text_decoder(image_embs, tokens[:, :5])
    assert torch.allclose(long[:, :5], short, atol=1e-5)


# --- refusals ---------------------------------------------------------------------------------------------------


def test_a_text_tower_that_would_not_read_it_is_refused():
    with pytest.raises(SpecError, match=r"^text_cfg\.block_type 'eq7' is not read by the tower 'roberta-base'"):
        open_clip.model.CLIPTextCfg(block_type="eq7", hf_model_name="roberta-base")
    with pytest.raises(SpecError, match=r"^multimodal_cfg\.block_type: .*unknown kind 'eq8'"):
        open_clip.coca_model.MultimodalCfg(block_type="eq8")
    with pytest.raises(SpecError, match=r"^text_cfg\.block_type: .*11 layers.*the tower has 12"):
        open_clip.model.CLIPTextCfg(block_type="eq7*11")
    with pytest.raises(SpecError, match=r"^text_cfg\.block_type: .*qk_norm"):
        open_clip.model.CLIPTextCfg(block_type="eq7", qk_norm=True)


def test_a_kind_without_a_causal_form_is_refused(monkeypatch):
    monkeypatch.setattr(KINDS["eq7"], "text", False)
    with pytest.raises(SpecError, match="eq7 has no causal form"):
        clip("eq7")
    clip("eq7", no_causal_mask=True)


def test_another_mask_is_refused_never_ignored():
    causal = clip("eq7").transformer
    x = torch.randn(2, 12, 32)
    mask = torch.full((12, 12), float("-inf")).triu(1)
    causal(x, attn_mask=mask)
    for wrong in (
        None,
        torch.zeros(12, 12),
        mask.mT,
        mask[:11, :11],
        mask.clamp(min=-9),
        mask == 0,
        mask.expand(4, 12, 12),
    ):
        with pytest.raises(ValueError, match="built for a causal mask over 12 tokens"):
            causal(x, attn_mask=wrong)
    padded = TextTransformer(**TEXT, embed_cls=True, block_type="eq7").transformer
    x, mask = torch.randn(2, 13, 32), torch.full((13, 13), float("-inf")).triu(1).repeat(4, 1, 1)
    padded(x, attn_mask=mask)
    bias = mask.clone()
    bias[:, 12, 3] = 0.5
    for wrong in (None, mask[0], mask.mT, bias):
        with pytest.raises(ValueError, match="built for a causal mask and key padding over 13 tokens"):
            padded(x, attn_mask=wrong)
