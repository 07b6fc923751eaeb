"""The arithmetic of `transformers`' own layers, in products of better shapes for a CPU.

Swapped in after loading; the weights stay where they are, held once. Numbers: `docs/log.md`, and
`bench/engine_speed.py` measures the whole. Two cores with AVX-512, float32, SmolLM2's shapes:
8 rows took 40 ms a step in `F.linear` and 34 ms here (16 rows: 37% less); the two products of a
gated MLP in one took 15% less time at 512 rows.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn
from torch.nn import functional

MIN_SKINNY_ROWS: Final = 4
MAX_SKINNY_ROWS: Final = 48
"""From here to there the product is faster with the weight on the left."""


class SkinnyLinear(nn.Module):
    """`nn.Linear` that turns the product round when there are few rows, as when sequences decode together."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self.in_features = linear.in_features
        self.out_features = linear.out_features

    def forward(self, rows: torch.Tensor) -> torch.Tensor:  # (..., in_features) -> (..., out_features)
        return product(rows, self.weight, self.bias)


class GatedMlp(nn.Module):
    """down(act(gate(x)) * up(x)) with gate and up as one product."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        gate, up = _linear(mlp, "gate_proj"), _linear(mlp, "up_proj")
        self.gate_up = nn.Parameter(torch.cat([gate.weight, up.weight]), requires_grad=False)
        self.down_proj = mlp.get_submodule("down_proj")
        self.act_fn = mlp.get_submodule("act_fn")

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        gate, up = product(rows, self.gate_up, None).chunk(2, dim=-1)
        result: torch.Tensor = self.down_proj(self.act_fn(gate).mul_(up))
        return result


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * weight in one pass instead of six."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.epsilon = epsilon

    def forward(self, rows: torch.Tensor) -> torch.Tensor:  # (..., size), (size,) normalised
        return functional.rms_norm(rows, self.weight.shape, self.weight, self.epsilon)


def product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """rows @ weight.T + bias, whichever way round is faster."""
    num_rows = rows.numel() // rows.shape[-1]
    if not MIN_SKINNY_ROWS <= num_rows <= MAX_SKINNY_ROWS:
        return functional.linear(rows, weight, bias)
    turned = torch.mm(weight, rows.reshape(num_rows, -1).t())  # (out_features, num_rows)
    output = turned.t().contiguous().view(*rows.shape[:-1], weight.shape[0])
    return output if bias is None else output.add_(bias)


def use_fast_layers(model: nn.Module) -> None:
    """Swap in the layers above wherever they compute what the model's own do."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, SkinnyLinear(child))
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if _is_gated_mlp(child):
                setattr(module, name, GatedMlp(child))
            elif (norm := _as_rms_norm(child)) is not None:
                setattr(module, name, norm)


def _is_gated_mlp(module: nn.Module) -> bool:
    """By its parts, and by what it computes for a few numbers."""
    parts = dict(module.named_children())
    if set(parts) != {"gate_proj", "up_proj", "down_proj", "act_fn"}:
        return False
    gate, up, down = (parts[name] for name in ("gate_proj", "up_proj", "down_proj"))
    if not all(isinstance(part, SkinnyLinear) for part in (gate, up, down)) or gate.bias is not None:
        return False
    width = _linear(module, "gate_proj").weight
    sample = torch.linspace(-1, 1, width.shape[1], dtype=width.dtype).unsqueeze(0)
    expected = down(parts["act_fn"](gate(sample)) * up(sample))
    return up.bias is None and torch.equal(module(sample), expected)


def _as_rms_norm(module: nn.Module) -> RmsNorm | None:
    """The same norm in one pass; None when the module computes anything else. Gemma adds 1 to its weight."""
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or weight is None or not isinstance(epsilon, float):
        return None
    sample = torch.linspace(-1, 2, 2 * weight.numel(), dtype=weight.dtype).view(2, -1)
    expected = module(sample)
    for candidate in (RmsNorm(weight, epsilon), RmsNorm(weight + 1, epsilon)):
        if torch.allclose(candidate(sample), expected, rtol=1e-6, atol=1e-7):
            return candidate
    return None


def _linear(module: nn.Module, name: str) -> SkinnyLinear:
    part = module.get_submodule(name)
    if not isinstance(part, SkinnyLinear):
        raise TypeError(f"{name} is a {type(part).__name__}")
    return part
