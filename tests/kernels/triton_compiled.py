"""Run by test_triton.py: compiles kernels for GPUs that need not be there; prints, as JSON, what each takes.

    python tests/kernels/triton_compiled.py short

Case by case [bytes of spilled registers, bytes of shared memory], by the assembler's own count.
"""

import itertools
import json
import re
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from open_clip_linear.kernels import triton_tiles
from open_clip_linear.kernels.form import form_of

ASSEMBLER = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
STATE = ("S_ptr", "rows_ptr", "dS_ptr", "drows_ptr", "scale_ptr", "weight_ptr", "gain_ptr", "dgain_ptr")  # float32
FACTORS = ("a", "c")
KERNELS = {
    "split": ("_sum_tokens", "_read_state", "_read_queries", "_read_keys"),
    "short": ("_forward", "_backward"),
}
KINDS = (("eq7", "mean"), ("eq4", "one"), ("inline", "mean"))


def type_of(name: str, dtype: str, plain: list[str]) -> str:
    """What an argument that is no constant is."""
    if name.endswith("_ptr"):
        return "*fp32" if name in STATE else f"*{dtype}"
    if name in FACTORS:
        return "fp32"
    return "i32" if name in plain else "i64"


def takes(function: object, constants: dict[str, object], dtype: str, arch: int, plain: list[str]) -> tuple[int, int]:
    """Bytes of spill stores and loads, and of shared memory, with tensors that begin at multiples of 16 as on GPUs."""
    names = [parameter.name for parameter in function.params]  # type: ignore[attr-defined]
    warps = constants["num_warps"]
    chosen = {name: value for name, value in constants.items() if name in names}
    signature = {name: "constexpr" if name in chosen else type_of(name, dtype, plain) for name in names}
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(names)
        if name not in (*chosen, *plain, *FACTORS)  # pointers and strides
    }
    source = ASTSource(fn=function, signature=signature, constexprs=chosen, attrs=aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(compiled.asm["ptx"])
        file.flush()
        target = f"--gpu-name=sm_{arch}{'a' if arch == 90 else ''}"
        run = subprocess.run([ASSEMBLER, "-v", target, file.name, "-o", "/dev/null"], capture_output=True, text=True)
    counts = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", run.stderr)
    if counts is None:
        raise SystemExit(run.stderr)
    return int(counts[1]) + int(counts[2]), compiled.metadata.shared


kernels = import_module(f"open_clip_linear.kernels.triton_{sys.argv[1]}")
found = {}
for head, dtype, (kind, scale) in itertools.product((32, 64, 80, 96, 128), NAMES, KINDS):
    torch.backends.cuda.matmul.allow_tf32 = head > 64  # exact float32 is not `supported` there
    q = torch.empty(11, 12, 197, head, dtype=dtype, device="meta")
    if sys.argv[1] == "short" and not kernels.suits(q):
        continue
    form = form_of(kind, scale, True, 197, head)
    constants = triton_tiles.constants(q, form) | triton_tiles.denominator(form)
    constants |= {"CENTRED": form.centred, "SHIFTED": triton_tiles.shifted(q, form)}
    constants |= {"WEIGHTED": form.divided, "GAINED": kind == "eq7"}
    for name, arch in itertools.product(KERNELS[sys.argv[1]], (80, 90)):
        case = f"{name} D={head} {NAMES[dtype]} sm_{arch} {kind}"
        found[case] = takes(getattr(kernels, name), constants, NAMES[dtype], arch, kernels.PLAIN)
print(json.dumps(found))
