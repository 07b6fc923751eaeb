"""What the scripted engine is to say: a TOML file of answers, and which of them fits a prompt.

Knows text alone, no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from keepwarm.core.errors import BadSetting

_NO_ANSWER_FITS = "No answer of the script fits this prompt."


class ScriptedAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Given where all of its conditions are met."""

    say: str
    """As the model would write it, markup of tool calls included."""
    when: str = ""
    """A regular expression that is found in the last message."""
    prompt: str = ""
    """A regular expression that is found anywhere in the prompt."""

    def __post_init__(self) -> None:
        """Raises `ValueError` naming the field."""
        for name, pattern in (("when", self.when), ("prompt", self.prompt)):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{name} = {pattern!r} is no regular expression: {error}") from error


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asked from the first to the last."""

    answers: tuple[ScriptedAnswer, ...]

    def answer_to(self, last_message: str, prompt: Callable[[], str]) -> str:
        """The first that fits, or a sentence that none does. `prompt` is asked for where it matters."""
        for answer in self.answers:
            if not re.search(answer.when, last_message):
                continue
            if not answer.prompt or re.search(answer.prompt, prompt()):
                return answer.say
        return _NO_ANSWER_FITS


def read_script(path: str) -> Script:
    """Raises `BadSetting` naming the file, the field and the value."""
    try:
        return msgspec.toml.decode(Path(path).read_bytes(), type=Script)
    except OSError as error:
        raise BadSetting(f"--script {path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise BadSetting(f"--script {path}: {error}") from error
