"""A chat template: the Jinja program that makes one text of a conversation.

Knows nothing of tokens. The dialect is the one Hugging Face's templates are written for: blocks
trimmed, `break` and `continue`, `tojson` that escapes nothing, `raise_exception`, `strftime_now`,
`{% generation %}`. No clock: the instant that `strftime_now` formats is passed in.

Source: "Chat templates" in the Transformers documentation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from keepwarm.core.errors import BadModel, BadRequest

TemplateMessage = dict[str, Any]
"""`role`, `content`, and where there are any `tool_calls`, `reasoning_content`, `tool_call_id`, `name`."""

PLAIN_TEMPLATE = """\
{{- opening -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{ message.content + '\\n\\n' }}
{%- elif message.role == 'user' -%}{{ 'User: ' + message.content + '\\n\\n' }}
{%- else -%}{{ 'Assistant: ' + message.content + eos_token + '\\n\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}
"""
"""For checkpoints that bring no template. `opening` is the BOS token where the model wants one."""

_FAULTS_OF_A_TEMPLATE = (
    *(jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError),
    *(ArithmeticError, RecursionError),
)


class ChatTemplate:
    """One compiled template."""

    def __init__(self, source: str, *, variables: Mapping[str, object], now: datetime | None = None) -> None:
        """`variables` are what the template may name besides the conversation: `bos_token`, …
        Without `now` the template sees no `strftime_now`. Raises `BadModel`."""
        environment = _environment(now)
        try:
            self._variables = jinja2.meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise BadModel(f"the model's chat template does not compile: {error}") from error
        self._constants = dict(variables)

    @property
    def mentions_tools(self) -> bool:
        """Whether it does anything with tools."""
        return "tools" in self._variables

    def takes(self, names: Iterable[str]) -> bool:
        """Whether it looks at any variable of these names."""
        return not self._variables.isdisjoint(names)

    def render(
        self,
        messages: Sequence[TemplateMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        """The text. Raises `BadRequest` with what the template says against the conversation."""
        try:
            return self._template.render(
                **self._constants,
                messages=list(messages),
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except _FAULTS_OF_A_TEMPLATE as error:
            raise BadRequest(f"the model's chat template refuses this conversation: {error}") from error


def _environment(now: datetime | None) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    if now is not None:
        environment.globals["strftime_now"] = now.strftime
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes HTML, which no model was trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks what an assistant said, for training; here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012 # jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
