"""The swapped-in layers compute what the model's own did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from keepwarm.engine.checkpoint import inspect_checkpoint
from keepwarm.engine.fast_layers import GatedMlp, SkinnyLinear, use_fast_layers
from keepwarm.engine.model_loading import load_model
from tests.engine.tiny_models import CONFIGS

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("num_rows", [1, 3, 4, 17, 48, 49, 70])
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_the_same_either_way_round(num_rows: int, bias: bool) -> None:
    torch.manual_seed(1)
    linear = nn.Linear(12, 20, bias=bias).requires_grad_(False)
    rows = torch.randn(1, num_rows, 12)
    output = SkinnyLinear(linear)(rows)
    torch.testing.assert_close(output, linear(rows))
    assert output.is_contiguous()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_with_fast_layers_gives_the_same_logits(name: str, tiny_model: Callable[[str], Path]) -> None:
    spec = inspect_checkpoint(str(tiny_model(name)))
    model = load_model(spec, torch.float32, attention="sdpa")
    for num_tokens in (1, 20, 60):
        ids = torch.arange(3, 3 + num_tokens).unsqueeze(0)
        with torch.inference_mode():
            plain = load_model(spec, torch.float32, attention="sdpa")(input_ids=ids, use_cache=False).logits
            use_fast_layers(model)
            torch.testing.assert_close(
                model(input_ids=ids, use_cache=False).logits, plain, atol=1e-4, rtol=1e-4
            )
    kinds = [type(module) for module in model.modules()]
    assert kinds.count(GatedMlp) == spec.num_layers
    assert nn.Linear not in kinds
    assert not [kind for kind in kinds if kind.__name__.endswith("RMSNorm")]


def test_an_mlp_that_computes_something_else_is_left_alone() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = nn.Linear(4, 6, bias=False), nn.Linear(4, 6, bias=False)
            self.down_proj, self.act_fn = nn.Linear(6, 4, bias=False), nn.SiLU()

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.down_proj(self.act_fn(self.up_proj(rows)) * self.gate_proj(rows))
            return answer

    model = nn.Sequential(Odd()).requires_grad_(False)
    use_fast_layers(model)
    assert isinstance(model[0], Odd)
