"""Run by test_triton.py: compiles every kernel for GPUs that need not be there; prints spilled bytes as JSON."""

import itertools
import json
import re
import subprocess
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from open_clip_linear.kernels import triton_affine

ASSEMBLER = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
STATE = ("S_ptr", "rows_ptr", "dS_ptr", "drows_ptr", "scale_ptr", "weight_ptr")  # always float32
WIDE = ("H", "N", "P", "span")
KINDS = (
    {"UNIT": True, "DIVIDED": False, "CENTRED": False, "WEIGHTED": False},  # eq7
    {"UNIT": True, "DIVIDED": True, "CENTRED": False, "WEIGHTED": True},  # eq4
    {"UNIT": False, "DIVIDED": False, "CENTRED": True, "WEIGHTED": False},  # inline
)


def spilled(function: object, constants: dict[str, object], dtype: str, arch: int) -> int:
    """Bytes of spill stores and loads, by the assembler's own count."""
    names = [parameter.name for parameter in function.params]  # type: ignore[attr-defined]
    warps = constants["num_warps"]
    chosen = {name: value for name, value in constants.items() if name in names}
    signature = {
        name: "constexpr"
        if name in chosen
        else "*fp32"
        if name in STATE
        else f"*{dtype}"
        if name.endswith("_ptr")
        else "i32"
        if name in WIDE
        else "i64"
        for name in names
    }
    source = ASTSource(fn=function, signature=signature, constexprs=chosen)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(compiled.asm["ptx"])
        file.flush()
        target = f"--gpu-name=sm_{arch}{'a' if arch == 90 else ''}"
        run = subprocess.run([ASSEMBLER, "-v", target, file.name, "-o", "/dev/null"], capture_output=True, text=True)
    counts = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", run.stderr)
    if counts is None:
        raise SystemExit(run.stderr)
    return int(counts[1]) + int(counts[2])


found = {}
for head, dtype, arch in itertools.product((32, 64, 80, 96, 128), NAMES, (80, 90)):
    torch.backends.cuda.matmul.allow_tf32 = head > 64  # exact float32 is not `supported` there
    constants = triton_affine._constants(torch.empty(1, 1, 1, head, dtype=dtype), MIN_NORM=1e-12, MIN_D=1e-6)
    for name, kind in itertools.product(("_sum_tokens", "_read_state", "_read_queries", "_read_keys"), KINDS):
        function = getattr(triton_affine, name)
        case = f"{name} D={head} {NAMES[dtype]} sm_{arch} {kind}"
        found[case] = spilled(function, {**constants, "SIGNED": False, **kind}, NAMES[dtype], arch)
print(json.dumps(found))
