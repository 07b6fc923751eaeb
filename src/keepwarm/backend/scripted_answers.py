"""A script in a model's own tokens: a prompt's ids into its answer's.

Runs in the rank, behind everything that is real: the prompt was rendered and tokenised as for the
model, and the answer is read as the model's.
"""

from __future__ import annotations

import numpy as np

from keepwarm.backend.script import Script
from keepwarm.chat.tokenizer import Tokenizer
from keepwarm.core.errors import BadModel
from keepwarm.core.ids import TokenIds

_MOST_MESSAGE_TOKENS = 65_536
"""A longer last message is looked at from its end."""


class ScriptedAnswers:
    """Remembers nothing: a turn that is started again is answered as before."""

    def __init__(self, script: Script, tokenizer: Tokenizer) -> None:
        """Raises `BadModel`."""
        if not tokenizer.stop_tokens:
            raise BadModel(f"{tokenizer.origin}: no token ends an answer")
        self._script = script
        self._tokenizer = tokenizer
        self._stops = tokenizer.stop_tokens

    def answer_to(self, prompt: TokenIds) -> tuple[int, ...]:
        """The ids of what the script says, and a stop token."""
        said = self._script.answer_to(self._last_message(prompt), lambda: self._text(prompt))
        ids = self._tokenizer.encode_template_text(said)
        return (*ids.tolist(), self._stops[0])

    def _last_message(self, prompt: TokenIds) -> str:
        """From the last stop token but one: in most templates, which end every message with one,
        the last message and the invitation to answer; in others the last answer before it too."""
        prompt = prompt[-_MOST_MESSAGE_TOKENS:]
        ends = np.flatnonzero(np.isin(prompt, self._stops))
        start = int(ends[-2]) + 1 if len(ends) > 1 else 0
        return self._text(prompt[start:])

    def _text(self, tokens: TokenIds) -> str:
        """Control tokens as their spelling."""
        spelled = b"".join(map(self._tokenizer.token_bytes, tokens.tolist()))
        return spelled.decode("utf-8", "replace")
