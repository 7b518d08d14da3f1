"""What PyTorch does with the operators: compile, export, autocast, checkpointing, FLOP counts, shards."""

from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from open_clip_linear import linear_attention, linear_attention_qkvpacked
from open_clip_linear.attention import naive
from open_clip_linear.kernels.form import SCALES


def qkv(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [t.to(dtype).requires_grad_() for t in torch.randn(3, *shape, dtype=torch.float64)]


@pytest.mark.parametrize("kind", SCALES)
def test_the_public_function_is_the_specification(kind: str) -> None:
    q, k, v = qkv(2, 3, 20, 8, dtype=torch.float64)
    for causal in (False, True):
        expected = getattr(naive, kind)(q, k, v, causal=causal)
        assert torch.allclose(linear_attention(q, k, v, kind=kind, causal=causal), expected)
        assert torch.allclose(linear_attention(q, k, v, kind=kind, causal=causal, backend="composed"), expected)
        packed = torch.stack([q, k, v]).permute(1, 3, 0, 2, 4)
        assert torch.allclose(linear_attention_qkvpacked(packed, kind=kind, causal=causal).transpose(1, 2), expected)


def test_what_does_not_fit_is_refused() -> None:
    q, k, v = (t.detach() for t in qkv(1, 2, 5, 4))
    for change, message in (
        ({"kind": "eq5"}, "kind must be one of eq7, eq4, inline, found 'eq5'"),
        ({"scale": "one"}, "eq7: scale must be one of half, mean, found 'one'"),
        ({"backend": "fast"}, "backend must be one of auto, operator, composed, found 'fast'"),
        ({"backend": "operator", "causal": True}, "no causal form"),
        ({"k": k[:, :, :3]}, r"of one shape, of which B alone may be 0, found k \(1, 2, 3, 4\)"),
        ({"q": q[:, :, :0], "k": k[:, :, :0], "v": v[:, :, :0]}, "B alone may be 0"),
        ({"v": v.double()}, "found v torch.float64 on cpu beside torch.float32"),
        ({"q": q.long(), "k": k.long(), "v": v.long()}, r"one dtype \(float16, bfloat16, float32, float64\)"),
        (dict.fromkeys("qkv", q.to(torch.float8_e4m3fn)), "found q torch.float8_e4m3fn on cpu"),
        (dict.fromkeys("qkv", q.to(torch.complex64)), "found q torch.complex64 on cpu"),
        ({"kind": "sema"}, "found 'sema'; sema needs a patch grid: a tower has it, chosen by block_type"),
        ({"kind": "softmax"}, "found 'softmax'; softmax is torch.nn.functional.scaled_dot_product_attention"),
        ({"scale": "learned"}, "found 'learned'; the learned gain is the towers'"),
    ):
        with pytest.raises(ValueError, match=message):
            linear_attention(**({"q": q, "k": k, "v": v, "kind": "eq7"} | change))
    with pytest.raises(ValueError, match=r"qkv must be \(B, N, 3, H, D\), found \(1, 2, 5, 4\)"):
        linear_attention_qkvpacked(q, kind="eq7")
    with pytest.raises(TypeError, match="k must be a tensor, found ndarray"):
        linear_attention(q, k.numpy(), v, kind="eq7")
    with pytest.raises(TypeError, match="qkv must be a tensor, found list"):
        linear_attention_qkvpacked(q.tolist(), kind="eq7")


def test_autocast_decides_the_dtype() -> None:
    q, k, v = qkv(1, 2, 30, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = linear_attention(q, k, v, kind="eq7", scale="mean")
    expected = naive.eq7(*[t.bfloat16().double() for t in (q, k, v)], scale="mean")
    assert o.dtype == torch.bfloat16
    assert (o.double() - expected).abs().max() < 4e-3 * expected.abs().max()
    o.sum().backward()
    assert q.grad is not None
    assert q.grad.dtype == torch.float32


def test_autocast_brings_mixed_dtypes_together() -> None:
    q, k, v = (t.detach() for t in qkv(1, 2, 30, 16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = linear_attention(q, k, v.bfloat16(), kind="eq7")
        assert torch.equal(mixed, linear_attention(q, k, v, kind="eq7"))


@pytest.mark.parametrize("kind", SCALES)
def test_forward_mode_derivatives_are_those_of_a_difference(kind: str) -> None:
    """The operators have none, and PyTorch would take zero for them."""
    packed, step = torch.randn(2, 1, 9, 3, 2, 8, dtype=torch.float64)

    def separate(packed: Tensor) -> Tensor:
        return linear_attention(*packed.permute(2, 0, 3, 1, 4), kind=kind)

    def together(packed: Tensor) -> Tensor:
        return linear_attention_qkvpacked(packed, kind=kind)

    for function in (separate, together):
        _, found = torch.func.jvp(function, (packed,), (step,))
        expected = (function(packed + 1e-6 * step) - function(packed - 1e-6 * step)) / 2e-6
        assert torch.allclose(found, expected, atol=1e-7)
    with pytest.raises(ValueError, match='nor forward-mode derivatives; give backend="auto"'):
        torch.func.jvp(lambda x: linear_attention(x, x, x, kind=kind, backend="operator"), (packed[0],), (step[0],))


def test_forward_mode_derivatives_go_through_towers_or_are_refused() -> None:
    images, step = torch.randn(2, 1, 3, 48, 48)
    for kind in ("eq7mean", "eq4", "inline"):
        visual = tower(kind)
        _, found = torch.func.jvp(visual, (images,), (step,))
        expected = (visual(images + 1e-3 * step) - visual(images - 1e-3 * step)) / 2e-3
        assert (found - expected).abs().max() < 0.02 * expected.abs().max()
    with pytest.raises(NotImplementedError, match="forward AD"):  # PyTorch's own, of its softmax
        torch.func.jvp(tower("sema"), (images,), (step,))


@pytest.mark.parametrize("kind", SCALES)
def test_flops_are_counted(kind: str) -> None:
    B, H, N, D = 2, 3, 50, 16
    q, k, v = qkv(B, H, N, D)
    with FlopCounterMode(display=False) as forward:
        o = linear_attention(q, k, v, kind=kind)
    with FlopCounterMode(display=False) as backward:
        o.sum().backward()
    assert forward.get_total_flops() == 4 * B * H * N * D**2
    assert backward.get_total_flops() == 8 * B * H * N * D**2
    packed = torch.randn(B, N, 3, H, D, requires_grad=True)
    with FlopCounterMode(display=False) as both:
        linear_attention_qkvpacked(packed, kind=kind).sum().backward()
    assert both.get_total_flops() == 12 * B * H * N * D**2


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    q, k, v = qkv(1, 2, 40, 8)
    direct = torch.autograd.grad(linear_attention(q, k, v, kind="eq4").square().sum(), (q, k, v))
    o = checkpoint(lambda *t: linear_attention(*t, kind="eq4"), q, k, v, use_reentrant=reentrant)
    o.square().sum().backward()
    assert all(torch.equal(t.grad, expected) for t, expected in zip((q, k, v), direct, strict=True))


@pytest.mark.parametrize("kind", SCALES)
def test_only_inputs_and_state_are_saved(kind: str) -> None:
    q, k, v = qkv(2, 3, 500, 16)
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        linear_attention(q, k, v, kind=kind)
    assert sorted(saved) == [2 * 3 * 2 * 16, 2 * 3 * 16 * 16, *[q.numel()] * 3]


def tower(kind: str) -> nn.Module:
    return open_clip.create_model(f"tiny-emoji-{kind}").visual.eval()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["eq7mean", "eq7learned", "eq4", "inline"])
def test_a_tower_compiles_whole(kind: str) -> None:
    """With inductor's own code, forward and backward, and no recompilation for another batch."""
    torch.compiler.reset()
    visual = tower(kind)
    visual.transformer.resblocks = visual.transformer.resblocks[:2]  # type: ignore[index,union-attr]
    compiled = torch.compile(visual, fullgraph=True, dynamic=True)
    for batch in (2, 3):
        images = torch.randn(batch, 3, *visual.image_size)
        expected, found = visual(images), compiled(images)
        assert torch.allclose(found, expected, atol=1e-5)
        names, trained = zip(*((n, p) for n, p in visual.named_parameters() if p.requires_grad), strict=True)
        wanted = torch.autograd.grad(expected.square().sum(), trained)
        got = torch.autograd.grad(found.square().sum(), trained)
        for name, a, b in zip(names, got, wanted, strict=True):
            assert torch.allclose(a, b, atol=1e-4 * float(b.abs().max().clamp(min=1))), name


@pytest.mark.parametrize("kind", ["eq7mean", "eq4", "inline", "sema"])
def test_a_tower_exports_with_any_batch(kind: str) -> None:
    visual = tower(kind)
    program = torch.export.export(
        visual, (torch.randn(2, 3, *visual.image_size),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    for batch in (1, 5):
        images = torch.randn(batch, 3, *visual.image_size)
        assert torch.allclose(program.module()(images), visual(images), atol=1e-5)
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    assert any(str(node.target).startswith("open_clip_linear.") for graph in graphs for node in graph.nodes)


def onnx_session(model: nn.Module, example: tuple[Tensor, ...], file: Path) -> Any:
    """The model by torch.onnx.export with a batch of any size, ready to run."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        runtime = pytest.importorskip(package, reason=f"{package} is not installed")
    batch = torch.export.Dim("batch")
    shapes = tuple({0: batch} for _ in example)
    torch.onnx.export(model, example, file, dynamo=True, dynamic_shapes=shapes, verbose=False)
    return runtime.InferenceSession(file, providers=["CPUExecutionProvider"])


def outputs_of(session: Any, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    names = [given.name for given in session.get_inputs()]
    return [torch.from_numpy(o) for o in session.run(None, dict(zip(names, map(Tensor.numpy, tensors), strict=True)))]


@pytest.mark.parametrize("kind", ["softmax", "eq7mean", "eq7learned", "eq4", "inline", "sema"])
def test_a_tower_goes_to_onnx_with_any_batch(kind: str, tmp_path: Path) -> None:
    visual = tower(kind)
    visual.transformer.resblocks = visual.transformer.resblocks[:2]  # type: ignore[index,union-attr]
    session = onnx_session(visual, (torch.randn(2, 3, *visual.image_size),), tmp_path / "tower.onnx")
    for batch in (1, 5):
        images = torch.randn(batch, 3, *visual.image_size)
        (found,) = outputs_of(session, (images,))
        assert torch.allclose(found, visual(images), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
def test_a_model_goes_to_onnx_with_its_text_tower(causal: bool, tmp_path: Path) -> None:
    vision = {"image_size": 32, "patch_size": 8, "layers": 1, "width": 64, "head_width": 32, "block_type": "eq7"}
    text = {"context_length": 20, "vocab_size": 99, "width": 64, "heads": 2, "layers": 4, "no_causal_mask": not causal}
    text["block_type"] = "eq7+eq4+inline+sema"
    model = open_clip.CLIP(32, vision_cfg=vision, text_cfg=text).eval()

    def inputs(batch: int) -> tuple[Tensor, Tensor]:
        return torch.randn(batch, 3, 32, 32), torch.randint(1, 99, (batch, 20))

    session = onnx_session(model, inputs(2), tmp_path / "model.onnx")
    for batch in (1, 5):
        given = inputs(batch)
        for found, expected in zip(outputs_of(session, given), model(*given), strict=True):
            assert torch.allclose(found, expected, atol=1e-4)


class OnTokens(nn.Module):
    """The public function, of (B, N, 3, H, D)."""

    def forward(self, qkv_BN3HD: Tensor) -> Tensor:
        return linear_attention_qkvpacked(qkv_BN3HD, kind="eq4")


def test_the_function_goes_to_onnx(tmp_path: Path) -> None:
    session = onnx_session(OnTokens().eval(), (torch.randn(2, 10, 3, 4, 8),), tmp_path / "function.onnx")
    qkv_BN3HD = torch.randn(5, 10, 3, 4, 8)
    (found,) = outputs_of(session, (qkv_BN3HD,))
    assert torch.allclose(found, OnTokens()(qkv_BN3HD), atol=1e-5)


class Block(nn.Module):
    """A linear layer, the operator, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        return self.last(linear_attention_qkvpacked(self.first(x).view(B, N, 3, 4, 8), kind="eq7").flatten(2))


def sharded(rank: int, file: str, out: str) -> None:
    """One of two processes: gradients by DDP and by FSDP2, both of the mean over the processes' samples."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    found: list[Any] = []
    for wrap in (DistributedDataParallel, lambda m: fully_shard(m, mesh=init_device_mesh("cpu", (2,)))):
        torch.manual_seed(1)
        model = wrap(Block())
        data = torch.randn(4, 11, 32, generator=torch.Generator().manual_seed(2))
        model(data[rank * 2 : rank * 2 + 2]).square().mean().backward()
        grads = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
        found.append([g.clone() for g in grads])
    if rank == 0:
        torch.save(found, out)
    dist.destroy_process_group()


def test_ddp_and_fsdp2_give_the_gradients_of_one_process(tmp_path: Path) -> None:
    mp.spawn(sharded, (str(tmp_path / "rendezvous"), str(tmp_path / "out.pt")), nprocs=2)
    torch.manual_seed(1)
    model = Block()
    data = torch.randn(4, 11, 32, generator=torch.Generator().manual_seed(2))
    model(data).square().mean().backward()
    for found in torch.load(tmp_path / "out.pt"):
        for grad, p in zip(found, model.parameters(), strict=True):
            assert torch.allclose(grad, p.grad, atol=1e-6)
