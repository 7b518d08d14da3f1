"""What eq4, eq7 and inline have in common: one affine form, of which each is a choice of five numbers.

    o_i = (a·Σ v_n + q̃_i·S) / d_i,   S = c·Σ k̃_nᵀ v_n,   d_i = 1 or clamp(1 + q̃_i·z̄),   z̄ = (1/N)·Σ k̃_n

q̃ and k̃ are q and k as they are, of unit length, or (inline) k less its mean. The backward pass is of the same form: two
sums over tokens (one D x D) and two products a token. Sources: arXiv 2604.10064 (eq4, eq7), 2412.06590 (inline).
"""

from dataclasses import dataclass

MIN_NORM = 1e-12  # of a row that is brought to unit length; a zero row stays zero
MIN_DENOMINATOR = 1e-6
SCALES = {"eq7": ("half", "mean"), "eq4": ("one", "half_n"), "inline": ("mean",)}  # the first is the default


@dataclass(frozen=True)
class Form:
    """One kind at one length N and head dimension D."""

    unit: bool  # q and k are L2-normalised per row
    centred: bool  # k less its mean over the tokens
    divided: bool  # by the clamped denominator
    signed: bool  # the denominator may be negative
    a: float
    c: float


def form_of(kind: str, scale: str, norm: bool, tokens: int, head_dim: int) -> Form:
    """The form of a kind. `scale` is one of its `SCALES`; `norm` is eq4's option of that name."""
    if kind == "eq7":
        factor = 0.5 / tokens if scale == "mean" else 0.5
        return Form(True, False, False, False, factor, factor)
    if kind == "eq4":
        factor = 0.5 if scale == "half_n" else 1 / tokens
        return Form(norm, False, True, not norm, factor, factor)
    return Form(False, True, False, False, 1 / tokens, head_dim**-0.5 / tokens)
