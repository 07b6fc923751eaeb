"""Executes plans with a model in this process. Owns the weights, the KV and the slots' tokens.

On a CPU `submit` computes at once, beside copies that run on a thread of their own, and the result waits
for `collect`.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import nn

from keepwarm.core.errors import BadModel, BadSetting, InvariantBroken
from keepwarm.core.grammar import Grammar, Vocabulary
from keepwarm.core.host_tier import HostArena
from keepwarm.core.layout import CacheLayout, LayerGroup
from keepwarm.core.step import (
    Executor,
    ExecutorLimits,
    SequenceOutput,
    SequenceStart,
    SequenceWork,
    StepId,
    StepPlan,
    StepResult,
)
from keepwarm.engine.arena_slots import ArenaSlots
from keepwarm.engine.attention import ATTENTION_NAME, NothingLeftToCompute
from keepwarm.engine.block_copies import BlockMover
from keepwarm.engine.checkpoint import CheckpointSpec, inspect_checkpoint
from keepwarm.engine.copies_in_flight import CopiesInFlight
from keepwarm.engine.copy_threads import CopyThreads
from keepwarm.engine.fast_layers import use_fast_layers
from keepwarm.engine.grammars import Grammars
from keepwarm.engine.kv_pools import KvPools, LayerShape
from keepwarm.engine.memory import cache_size, free_memory_bytes, usable_cores
from keepwarm.engine.model_loading import load_model
from keepwarm.engine.rank_share import threads_of_a_rank
from keepwarm.engine.sampling import SEED_BITS, Draw, DrawnToken, draw_tokens
from keepwarm.engine.sequences import SequenceState, SequenceTable
from keepwarm.engine.settings import EngineSettings
from keepwarm.engine.step_layout import StepLayout

MAX_IN_FLIGHT: Final = 2
_DTYPES: Final = {
    "auto": torch.float32,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

Works = Sequence[tuple[SequenceWork, SequenceState]]


def build_torch_executor(
    settings: EngineSettings, *, load_vocabulary: Callable[[], Vocabulary] | None = None
) -> tuple[Executor, str]:
    """Load a model and make room for its KV; the text is one line for the log.

    `load_vocabulary` is called, in another thread, once the first grammar comes; without it there
    can be none.

    Raises `BadModel`, `BadSetting` and `TooLittleMemory`, most of them before weights are read.
    """
    spec = inspect_checkpoint(settings.model_path)
    max_model_len = _checked_max_model_len(settings, spec)
    _check_settings(settings)
    num_threads = threads_of_a_rank(settings, num_cores=usable_cores())
    torch.set_num_threads(num_threads)
    dtype = _DTYPES[settings.dtype]
    model = load_model(spec, dtype)
    with torch.inference_mode():
        use_fast_layers(model)
    shapes = probe_layers(model)
    layout = _layout(shapes, settings.block_size, dtype)
    free_bytes = free_memory_bytes()
    size = cache_size(settings, layout, max_model_len=max_model_len, free_bytes=free_bytes)
    limits = ExecutorLimits(
        layout=layout,
        num_blocks=size.num_blocks,
        num_window_blocks=size.num_window_blocks,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=max_model_len,
        vocab_size=spec.vocab_size,
    )
    grammars = load_vocabulary and Grammars(load_vocabulary, vocab_size=spec.vocab_size)
    executor = TorchExecutor(model=model, shapes=shapes, limits=limits, dtype=dtype, grammars=grammars)
    name = str(dtype).removeprefix("torch.")
    description = f"{spec.architecture} on cpu, {name}, {num_threads} threads, {ATTENTION_NAME} attention"
    if limits.num_window_blocks:
        tokens = limits.num_window_blocks * layout.block_size
        description += f", windows of {layout.window_tokens} tokens within {tokens}"
    return executor, description


class TorchExecutor:
    """`core.step.Executor` over one `transformers` model whose attention is `ATTENTION_NAME`."""

    def __init__(
        self,
        *,
        model: nn.Module,
        shapes: Sequence[LayerShape],
        limits: ExecutorLimits,
        dtype: torch.dtype,
        grammars: Grammars | None = None,
        copy_threads: int = 1,
    ) -> None:
        self._limits = limits
        self._grammars = grammars
        self._model: nn.Module | None = model
        self._sequences = SequenceTable(limits)
        self._pools = KvPools(
            shapes=shapes,
            num_blocks=limits.num_blocks,
            num_window_blocks=limits.num_window_blocks,
            block_size=limits.layout.block_size,
            dtype=dtype,
        )
        self._layout = StepLayout(
            pools=self._pools,
            block_size=limits.layout.block_size,
            windows={shape.window_tokens for shape in shapes},
            dtype=dtype,
        )
        self._num_copy_threads = copy_threads
        self._copies_in_flight = CopiesInFlight(limits.num_blocks)
        self._copy_threads: CopyThreads | None = None
        self._results: deque[tuple[StepPlan, StepResult]] = deque()

    @property
    def limits(self) -> ExecutorLimits:
        return self._limits

    def attach_arena(self, arena: HostArena) -> None:
        """Raises `BadSetting` where the memory was cut for other blocks, or some layers have blocks of their
        own, which are never copied. No copy may be in flight."""
        if self._limits.num_window_blocks:
            raise BadSetting(
                f"--host-cache-gb: this model's layers with a window of {self._limits.layout.window_tokens} "
                "tokens keep only their windows, which are not copied to host memory yet"
            )
        slots = ArenaSlots(arena, self._limits.layout)
        self._copies_in_flight.use_slots(len(slots))
        if self._copy_threads is not None:
            self._copy_threads.close()
        mover = BlockMover(self._pools.block_parts, slots)
        self._copy_threads = CopyThreads(mover, num_threads=self._num_copy_threads)

    def prepare(self, grammar: Grammar) -> bool:
        return self._with_grammars().prepare(grammar)

    def submit(self, plan: StepPlan) -> StepId:
        """Compute a plan. Raises `InvariantBroken` on a wrong plan, and where logits are not numbers."""
        if len(self._results) >= MAX_IN_FLIGHT:
            raise InvariantBroken(f"step {plan.step_id} submitted with {MAX_IN_FLIGHT} steps uncollected")
        self._sequences.apply(plan, [_seed(start.sampling.seed) for start in plan.starts])
        self._start_matchers(plan.starts)
        works = [(work, self._sequences[work.slot]) for work in plan.works]
        self._begin_copies(plan, works)
        started_at = time.perf_counter()
        outputs = self._compute(works) if works else ()
        compute_s = time.perf_counter() - started_at if works else 0.0
        self._results.append((plan, StepResult(step_id=plan.step_id, outputs=outputs, compute_s=compute_s)))
        return plan.step_id

    def collect(self) -> StepResult:
        """Waits only where its plan awaits a copy. Raises what a copy raised."""
        if not self._results:
            raise InvariantBroken("collect without a submitted step")
        plan, result = self._results.popleft()
        if not self._copies_in_flight or self._copy_threads is None:
            return result
        copies = self._copy_threads.take(plan.step_id, awaited=plan.awaits_copy and not plan.works)
        for ended in copies:
            self._copies_in_flight.end(ended.copy_id)
        return replace(result, copies=copies)

    def close(self) -> None:
        """Waits for copies that run; then host memory may be unmapped."""
        if self._copy_threads is not None:
            self._copy_threads.close()
            self._copy_threads = None
        if self._results:
            raise InvariantBroken(f"closed with {len(self._results)} steps uncollected")
        self._model = None
        if self._grammars is not None:
            self._grammars.close()

    def _begin_copies(self, plan: StepPlan, works: Works) -> None:
        """Those `before_works` are done on return."""
        self._copies_in_flight.begin(plan)
        if not self._copies_in_flight:
            return
        layout = self._limits.layout
        for work, state in works:
            own = work.start // layout.block_size
            # What a sequence reads is looked at once: every step would cost as much as it has blocks.
            first = 0 if state.num_computed is None else own
            self._copies_in_flight.check_work(
                f"step {plan.step_id} computes [{work.start}, {work.end}) of slot {work.slot}",
                read=state.blocks[first : layout.blocks_for(work.end)],
                written=state.blocks[own : layout.blocks_for(work.end)],
            )
        if self._copy_threads is not None:
            self._copy_threads.begin(plan)

    def _start_matchers(self, starts: Sequence[SequenceStart]) -> None:
        for start in starts:
            if start.grammar is not None:
                generated = start.tokens[start.num_prompt_tokens :].tolist()
                matcher = self._with_grammars().matcher(start.grammar, generated)
                self._sequences[start.slot].matcher = matcher

    def _with_grammars(self) -> Grammars:
        if self._grammars is None:
            raise InvariantBroken("a grammar came to an executor that was built without a vocabulary")
        return self._grammars

    def _compute(self, works: Works) -> tuple[SequenceOutput, ...]:
        if self._model is None:
            raise InvariantBroken("a step was submitted after close")
        with torch.inference_mode():
            logits = self._logits(self._model, works)
            for work, state in works:
                state.num_computed = max(work.end, state.num_computed or 0)
            sampling = [(work, state) for work, state in works if work.sample]
            draws = [_draw(work, state) for work, state in sampling]
            drawn = [] if logits is None else draw_tokens(logits, draws)
        return tuple(
            _output(work, state, token) for (work, state), token in zip(sampling, drawn, strict=True)
        )

    def _logits(self, model: nn.Module, works: Works) -> torch.Tensor | None:
        """One row a work that samples, (n, vocab_size); None when none does."""
        inputs = self._layout.inputs(works)
        try:
            output = model(
                input_ids=inputs.input_ids,
                position_ids=inputs.position_ids,
                use_cache=False,
                logits_to_keep=inputs.sampled_rows,
                step=inputs.attention,
            )
        except NothingLeftToCompute:
            return None
        logits: torch.Tensor = output.logits[0]
        return logits


def _draw(work: SequenceWork, state: SequenceState) -> Draw:
    allowed = None if state.matcher is None else state.matcher.allowed()
    return Draw(
        sampling=state.sampling,
        seed=state.seed,
        position=work.end,
        name=state.request_id,
        allowed=allowed,
    )


def _output(work: SequenceWork, state: SequenceState, drawn: DrawnToken) -> SequenceOutput:
    state.append_token(drawn.token)
    if state.matcher is not None:
        if state.matcher.end is not None:  # it only holds the place of what a later plan may count on
            return SequenceOutput(slot=work.slot, tokens=(), grammar_end=state.matcher.end)
        state.matcher.accept(drawn.token)
    logprobs = () if drawn.logprobs is None else (drawn.logprobs,)
    return SequenceOutput(slot=work.slot, tokens=(drawn.token,), logprobs=logprobs)


def _seed(wanted: int | None) -> int:
    return secrets.randbits(SEED_BITS) if wanted is None else wanted


# --- what a model is made of --------------------------------------------------------------------


class _Probe:
    """Stands in for a step's attention once, and writes down what each layer asks for."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window_tokens: int | None,
    ) -> torch.Tensor:
        if key.shape != value.shape or query.shape[2] != key.shape[2] or query.shape[0] % key.shape[0]:
            raise BadModel(f"layer {layer} has attention heads of unlike sizes, which is not supported")
        self.shapes[layer] = LayerShape(
            num_key_heads=key.shape[0], head_dim=key.shape[2], window_tokens=window_tokens
        )
        return torch.zeros_like(query).transpose(0, 1)


def probe_layers(model: nn.Module) -> list[LayerShape]:
    """What each layer keeps and how far it looks, from one call with one token: what it says is what runs."""
    probe = _Probe()
    with torch.inference_mode():
        model(
            input_ids=torch.zeros(1, 1, dtype=torch.int64),
            position_ids=torch.zeros(1, 1, dtype=torch.int64),
            use_cache=False,
            step=probe,
        )
    if sorted(probe.shapes) != list(range(len(probe.shapes))) or not probe.shapes:
        raise BadModel(
            f"attention was called for layers {sorted(probe.shapes)}; {ATTENTION_NAME} needs all of them"
        )
    return [probe.shapes[layer] for layer in range(len(probe.shapes))]


def _layout(shapes: Sequence[LayerShape], block_size: int, dtype: torch.dtype) -> CacheLayout:
    windows = sorted({shape.window_tokens for shape in shapes}, key=lambda window: window or 0)
    groups = []
    for window in windows:
        members = [shape for shape in shapes if shape.window_tokens == window]
        groups.append(
            LayerGroup(
                kind="full" if window is None else "window",
                num_layers=len(members),
                window_tokens=window,
                bytes_per_token=sum(shape.bytes_per_token(dtype) for shape in members),
            )
        )
    return CacheLayout(block_size=block_size, groups=tuple(groups))


def _checked_max_model_len(settings: EngineSettings, spec: CheckpointSpec) -> int:
    if settings.max_model_len is None:
        return spec.max_position
    if not 0 < settings.max_model_len <= spec.max_position:
        raise BadSetting(
            f"--max-model-len {settings.max_model_len}: "
            f"this model was made for 1 to {spec.max_position} tokens"
        )
    return settings.max_model_len


def _check_settings(settings: EngineSettings) -> None:
    counts = {
        "--max-num-seqs": settings.max_num_seqs,
        "--max-num-batched-tokens": settings.max_num_batched_tokens,
        "--block-size": settings.block_size,
        "--num-threads": settings.num_threads,
    }
    for option, value in counts.items():
        if value is not None and value < 1:
            raise BadSetting(f"{option} {value}: must be at least 1")
    if settings.dtype not in _DTYPES:
        raise BadSetting(f"--dtype {settings.dtype}: must be one of {', '.join(_DTYPES)}")
    if settings.device_cache_gb is not None and settings.device_cache_gb <= 0:
        raise BadSetting(f"--device-cache-gb {settings.device_cache_gb}: must be more than 0")
    share = settings.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        raise BadSetting(f"--gpu-memory-utilization {share}: must be more than 0 and at most 1")
