"""The scheduler's side of layers with a window: their pool, and their blocks as changes to a plan."""

from __future__ import annotations

from keepwarm.cache.prefix import PrefixCache
from keepwarm.cache.window_pool import WindowPool
from keepwarm.core.errors import BadSetting, InvariantBroken
from keepwarm.core.layout import window_needs
from keepwarm.core.step import BlockChange, ExecutorLimits
from keepwarm.sched.settings import SchedulerSettings
from keepwarm.sched.turn import Turn


def window_pool(limits: ExecutorLimits, settings: SchedulerSettings) -> WindowPool | None:
    """None where these layers' KV is part of the other blocks. Raises `BadSetting`."""
    window_tokens, block_size = limits.layout.window_tokens, limits.layout.block_size
    if window_tokens is None or not limits.num_window_blocks:
        return None
    needs = window_needs(window_tokens, block_size, max_num_batched_tokens=settings.max_num_batched_tokens)
    max_holdings = needs.most_sequences(limits.num_window_blocks)
    if not max_holdings:
        raise BadSetting(
            f"--max-num-batched-tokens {settings.max_num_batched_tokens}: the {limits.num_window_blocks} "
            f"blocks of the layers with a window of {window_tokens} tokens do not hold one turn's steps"
        )
    return WindowPool(block_size, window_tokens, limits.num_window_blocks, max_holdings=max_holdings)


def window_changes(cache: PrefixCache, turn: Turn, end: int) -> list[BlockChange]:
    """Blocks of these layers for a running turn's tokens before `end`; there always are some."""
    if turn.holding is None or turn.slot is None:
        raise InvariantBroken(f"{turn.request_id} grows without blocks or a slot")
    added, window = cache.extend_window(turn.holding, end), turn.holding.window
    if window is None:
        return []
    return [
        BlockChange(slot=turn.slot, index=index, block=block, in_windows=True)
        for index, block in enumerate(added.tolist(), start=window.end - len(added))
    ]
