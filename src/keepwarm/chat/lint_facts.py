"""What a template takes and gives, as findings: nothing here costs tokens."""

from __future__ import annotations

from collections.abc import Iterator

from keepwarm.chat.lint_finding import Finding
from keepwarm.chat.parsing.answer_markup import markup_of
from keepwarm.chat.prompt_writer import Program
from keepwarm.chat.render import RenderedPrompt
from keepwarm.chat.template_messages import MessageForm
from keepwarm.chat.tokenizer import Tokenizer

_GROWTHS = {
    (False, False): "a tool's result",
    (False, True): "a question",
    (True, False): "a tool's result, with thoughts",
    (True, True): "a question, with thoughts",
}

_REPLAY_OFF = Finding(
    id="replay-off",
    severity="info",
    what="Answers in the history are tokenised anew: no stop token follows them, or the template writes "
    "the question before them in another way. Mostly the same tokens come out.",
    fix="Let the template end an answer with the model's stop token.",
)


def facts(tokenizer: Tokenizer, program: Program, *, tool_format: str) -> Iterator[Finding]:
    """How answers come back, how the host grows a prompt, and what the template knows.

    Raises `BadSetting` for a tool format that there is not.
    """
    yield from _replay(program)
    yield _beginnings(program)
    markup = markup_of("\n".join(tokenizer.chat_templates.values()), tool_format=tool_format)
    yield Finding(id="tool-format", severity="ok", what=f"Tool calls are read as {markup.name}.")
    yield from _form(program.form)


def beginning_of_text(tokenizer: Tokenizer, prompt: RenderedPrompt) -> Finding:
    """Whether the prompt has one BOS token, none, or several."""
    bos = tokenizer.control_id(tokenizer.bos_token) if tokenizer.bos_token else None
    count = next((n for n, token in enumerate(prompt.tokens.tolist()) if token != bos), 0)
    if count > 1:
        return Finding(
            id="bos-doubled",
            severity="warning",
            what=f"A prompt begins with {count} BOS tokens ({tokenizer.bos_token}).",
            fix="Let the template write it once: models answer worse after two.",
        )
    begins = f"with one BOS token ({tokenizer.bos_token})" if count else "without a BOS token"
    return Finding(id="bos", severity="ok", what=f"A prompt begins {begins}.")


def _replay(program: Program) -> Iterator[Finding]:
    place = program.place
    if not place.closes:
        yield _REPLAY_OFF
        return
    what = "Answers come back as the very tokens they were generated as."
    yield Finding(id="replay", severity="ok", what=what)
    if place.header != place.invitation:
        yield Finding(
            id="header-replayed",
            severity="info",
            what="An answer in the history begins otherwise than the prompt that invited it. Replay puts it "
            "back as it was generated, while it is remembered and the template keeps its thoughts.",
        )


def _beginnings(program: Program) -> Finding:
    kinds = program.locality.kinds
    if kinds >= _GROWTHS.keys():
        what = "A conversation that only grew is rendered and tokenised at the cost of what is new."
        return Finding(id="growth", severity="ok", what=what)
    whole = ", ".join(name for kind, name in _GROWTHS.items() if kind not in kinds)
    return Finding(
        id="growth-whole",
        severity="info",
        what=f"A conversation is rendered as a whole after: {whole}. That costs time on the host, no tokens.",
        fix="Let the template write every message from that message and its neighbours alone.",
    )


def _form(form: MessageForm) -> Iterator[Finding]:
    if form.takes_tools:
        yield Finding(id="tools", severity="ok", what="The template writes tools, calls and results itself.")
    else:
        yield Finding(
            id="tools-as-text",
            severity="info",
            what="The template knows no tools: they are described at the end of the system prompt, and calls "
            "and results are text.",
            fix="Use a model that was trained to call tools; small others often fail to.",
        )
    if form.takes_system:
        yield Finding(id="system", severity="ok", what="The template takes a system prompt.")
    else:
        what = "The template takes no system prompt: it opens the first question instead."
        yield Finding(id="system-as-question", severity="info", what=what)
    content = "a list of parts" if form.takes_parts else "one text"
    yield Finding(id="content", severity="ok", what=f"The template takes a message's content as {content}.")
