from __future__ import annotations

from collections.abc import Sequence

import pytest

from keepwarm.core.host_tier import HostArena
from keepwarm.core.layout import CacheLayout, LayerGroup
from keepwarm.core.step import BlockCopies, CopyResult

pytest.importorskip("torch")

import torch

from keepwarm.engine.arena_slots import ArenaSlots
from keepwarm.engine.block_copies import PIECE_BYTES, BlockMover
from keepwarm.engine.kv_pools import KvPools, LayerShape
from tests.engine.arenas import copies, flip_a_bit, make_arena

pytestmark = pytest.mark.engine

BLOCK_SIZE = 4
NUM_BLOCKS = 24
SAME = [LayerShape(num_key_heads=2, head_dim=8, window_tokens=None)] * 3
MIXED = [
    LayerShape(num_key_heads=heads, head_dim=dim, window_tokens=window)
    for heads, dim, window in ((2, 8, None), (2, 8, 16), (1, 24, None), (2, 8, None))
]


class Blocks:
    """Pools filled with random numbers, and host memory for them."""

    def __init__(self, shapes: Sequence[LayerShape] = SAME, dtype: torch.dtype = torch.float32) -> None:
        group = LayerGroup(
            kind="full",
            num_layers=len(shapes),
            window_tokens=None,
            bytes_per_token=sum(shape.bytes_per_token(dtype) for shape in shapes),
        )
        self.layout = CacheLayout(block_size=BLOCK_SIZE, groups=(group,))
        self.pools = KvPools(shapes=shapes, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=dtype)
        self.arena = make_arena(self.layout, num_slots=NUM_BLOCKS)
        self.mover = BlockMover(self.pools.block_parts, ArenaSlots(self.arena, self.layout))
        generator = torch.Generator().manual_seed(4)
        for rows in self._rows():
            rows.copy_(torch.randn(rows.shape, generator=generator))

    def block(self, block: int) -> list[torch.Tensor]:
        """Keys, then values of each layer in order."""
        rows = slice(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
        return [part[rows].clone() for part in self._rows()]

    def overwrite(self, *blocks: int) -> None:
        for block in blocks:
            for part in self._rows():
                part[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE] = 7.0

    def copy(self, copied: BlockCopies) -> CopyResult:
        progress = self.mover.begin(copied)
        while not progress.has_ended:
            self.mover.move_piece(progress)
        return self.mover.result(progress, 0.5)

    def _rows(self) -> list[torch.Tensor]:
        layers = [self.pools.layer(index) for index in range(self.pools.num_layers)]
        return [rows for layer in layers for rows in (layer.key_rows, layer.value_rows)]


def slot_bytes(arena: HostArena, slot: int) -> bytes:
    first = arena.layout.slots_offset + slot * arena.layout.slot_bytes
    return bytes(arena.memory[first : first + arena.layout.slot_bytes])


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shapes", [SAME, MIXED])
def test_a_slot_holds_keys_then_values_of_each_layer_in_order(
    shapes: Sequence[LayerShape], dtype: torch.dtype
) -> None:
    blocks = Blocks(shapes, dtype)
    result = blocks.copy(copies(1, "demote", [5, 6, 2], [0, 1, 9]))
    assert (result.copy_id, result.is_sound, result.copy_s) == (1, True, 0.5)
    assert result.num_bytes == 3 * blocks.layout.bytes_per_block
    for block, slot in ((5, 0), (6, 1), (2, 9)):
        parts = b"".join(part.view(torch.uint8).numpy().tobytes() for part in blocks.block(block))
        assert slot_bytes(blocks.arena, slot) == parts


@pytest.mark.parametrize("shapes", [SAME, MIXED])
@pytest.mark.parametrize(
    "moved",
    [
        ([3, 4, 5], [7, 8, 9], [3, 4, 5]),
        ([3, 4, 5], [9, 8, 7], [11, 10, 9]),
        ([0, 2, 3, 23], [1, 2, 3, 23], [20, 5, 6, 7]),
    ],
)
def test_blocks_come_back_to_other_places_as_they_were(
    moved: tuple[list[int], list[int], list[int]], shapes: Sequence[LayerShape]
) -> None:
    blocks = Blocks(shapes)
    down, slots, up = moved
    contents = [blocks.block(block) for block in down]
    bystander = blocks.block(21)
    blocks.copy(copies(1, "demote", down, slots))
    blocks.overwrite(*down)
    assert blocks.copy(copies(2, "promote", up, slots)).is_sound
    for block, content in zip(up, contents, strict=True):
        assert_same(blocks.block(block), content)
    assert_same(blocks.block(21), bystander)


def test_a_copy_larger_than_a_piece_is_moved_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NUM_BLOCKS * Blocks().layout.bytes_per_block < PIECE_BYTES
    monkeypatch.setattr("keepwarm.engine.block_copies.PIECE_BYTES", 5 * Blocks().layout.bytes_per_block)
    blocks = Blocks()
    contents = [blocks.block(block) for block in range(12)]
    progress = blocks.mover.begin(copies(1, "demote", range(12), range(12)))
    seen = []
    while not progress.has_ended:
        blocks.mover.move_piece(progress)
        seen.append(progress.num_done)
    assert seen == [5, 10, 12]
    assert blocks.copy(copies(2, "promote", range(12, 24), range(12))).is_sound
    for block, content in enumerate(contents):
        assert_same(blocks.block(12 + block), content)


def test_a_flipped_bit_is_found_and_nothing_after_its_piece_is_moved() -> None:
    blocks = Blocks()
    blocks.copy(copies(1, "demote", [1, 2, 3], [4, 5, 6]))
    flip_a_bit(blocks.arena, 6, offset=blocks.layout.bytes_per_block - 1)
    before = blocks.block(9)
    result = blocks.copy(copies(2, "promote", [7, 8, 9], [4, 5, 6]))
    assert not result.is_sound
    assert result.num_bytes == 0
    assert_same(blocks.block(9), before)
