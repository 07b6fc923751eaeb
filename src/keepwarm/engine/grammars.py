"""The grammars of a rank: compiled beside the engine's thread, kept while there is room.

A grammar takes milliseconds to compile, one of many tools seconds; no step waits for it. Nothing is
loaded until the first grammar comes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from keepwarm.core.errors import BadRequest
from keepwarm.core.grammar import Grammar, Vocabulary
from keepwarm.engine.memory import usable_cores

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar

    from keepwarm.engine.grammar_compiler import GrammarCompiler, TokenMatcher

MAX_GRAMMARS: Final = 256
MAX_CACHED_BYTES: Final = 256 * 1_000_000
"""Compiled grammars kept for the next turn with the same one; the ones longest unused go first."""


class Grammars:
    """Called from the engine's thread alone."""

    def __init__(self, load_vocabulary: Callable[[], Vocabulary], *, vocab_size: int) -> None:
        """`vocab_size` is the width of the model's logits; a vocabulary may be shorter or longer."""
        self._load_vocabulary = load_vocabulary
        self._vocab_size = vocab_size
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._compiler: GrammarCompiler | None = None
        self._jobs: OrderedDict[Grammar, Future[CompiledGrammar]] = OrderedDict()

    def __contains__(self, grammar: Grammar) -> bool:
        """Whether it is compiled, refused or in work."""
        return grammar in self._jobs

    def prepare(self, grammar: Grammar) -> bool:
        """See `core.step.Executor.prepare`."""
        job = self._job(grammar)
        if not job.done():
            return False
        job.result()
        return True

    def matcher(self, grammar: Grammar, generated: Sequence[int]) -> TokenMatcher:
        """For one sequence, after the tokens it has generated. Waits where the grammar is not there
        (it was dropped while its turn was preempted), since no token may be drawn without it."""
        compiled = self._job(grammar).result()
        from keepwarm.engine.grammar_compiler import TokenMatcher  # loaded by now, in the other thread

        return TokenMatcher(compiled, vocab_size=self._vocab_size, generated=generated)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _job(self, grammar: Grammar) -> Future[CompiledGrammar]:
        if grammar not in self._jobs:
            self._jobs[grammar] = self._thread.submit(self._compile, grammar)
            self._make_room()
        self._jobs.move_to_end(grammar)
        return self._jobs[grammar]

    def _make_room(self) -> None:
        """Failures are kept too, so that a client that tries again costs nothing."""
        sizes = {grammar: _size_bytes(job) for grammar, job in self._jobs.items() if job.done()}
        total_bytes = sum(sizes.values())
        for grammar, size_bytes in sizes.items():
            if total_bytes <= MAX_CACHED_BYTES and len(self._jobs) <= MAX_GRAMMARS:
                break
            del self._jobs[grammar]
            total_bytes -= size_bytes

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        if self._compiler is None:
            self._compiler = self._load()
        return self._compiler.compile(grammar)

    def _load(self) -> GrammarCompiler:
        try:
            from keepwarm.engine.grammar_compiler import GrammarCompiler
        except ImportError as error:
            raise BadRequest(
                f"tool_choice and response_format cannot be enforced here: {error}; install xgrammar"
            ) from error
        return GrammarCompiler(
            self._load_vocabulary(),
            vocab_size=self._vocab_size,
            num_threads=max(1, usable_cores() // 2),  # the others go on computing steps
        )


def _size_bytes(job: Future[CompiledGrammar]) -> int:
    return 0 if job.exception() is not None else job.result().memory_size_bytes
