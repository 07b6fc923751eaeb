"""Small ChatML templates, each with one habit that the lint must find."""

from __future__ import annotations

from tests.chat.families import CHATML, THINKING

_MESSAGES = "{% for message in messages %}"
_END = "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
_CALLS = "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
_MESSAGE = "{{ '<|im_start|>' + message.role + '\n' + message.content }}" + _CALLS + "{{ '<|im_end|>\n' }}"
_TOOLS = "{% if tools %}{{ '<|im_start|>tools\n' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
_LAST_QUESTION = (
    "{% set ns = namespace(last=0) %}{% for message in messages %}{% if message.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)

STABLE = _TOOLS + _MESSAGES + _MESSAGE + _END
DROPS_AFTER_A_QUESTION = THINKING
DROPS_ALWAYS = STABLE.replace("+ message.content", "+ message.content.split('</think>')[-1]")
KEEPS_THOUGHTS = STABLE.replace(
    "'\n' + message.content",
    "'\n' + ('<think>' + message.thinking + '</think>' if message.thinking else '') + message.content",
)
TOOLS_LAST = (
    _LAST_QUESTION + _MESSAGES + "{% if loop.index0 == ns.last %}" + _TOOLS + "{% endif %}" + _MESSAGE + _END
)
"""As Mistral's."""
SYSTEM_LAST = (
    _LAST_QUESTION
    + _TOOLS
    + "{% for message in messages if message.role != 'system' %}"
    + "{% if message.role == 'user' and message.content == messages[ns.last].content %}"
    + "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}{% endif %}"
    + _MESSAGE
    + _END
)
BOTH_LAST = SYSTEM_LAST.replace(_TOOLS, "").replace(
    "{% if messages[0].role == 'system' %}", _TOOLS + "{% if messages[0].role == 'system' %}"
)
DATED = "{{ '<|im_start|>system\nToday: ' + strftime_now('%d %b %Y') + '<|im_end|>\n' }}" + STABLE
NUMBERED = STABLE.replace("message.role + '\n'", "message.role + ' of ' + messages | length | string + '\n'")
LAST_TEXT = STABLE.replace(
    "{{ '<|im_end|>\n' }}",
    "{{ ' Answer briefly!' if loop.last and message.role != 'assistant' else '' }}{{ '<|im_end|>\n' }}",
)
TRIMS_EARLIER = STABLE.replace(
    "+ message.content", "+ (message.content if loop.last else message.content | trim)"
)
REWRITES = STABLE.replace("+ message.content", "+ (message.content if loop.revindex < 8 else '(long ago)')")

_UNCLOSED = (
    _TOOLS
    + "{% for message in messages %}{% if message.role == 'assistant' %}"
    + "{{ 'ANSWER: ' + message.content TRIM }}"
    + _CALLS
    + "{{ 'END' }}{% else %}{{ message.role + ': ' + message.content + '\n' }}{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}{{ 'INVITATION' }}{% endif %}"
)
"""No stop token follows an answer, so none is replayed."""
_ENDED = _UNCLOSED.replace("END", "\n")
HEADER = _ENDED.replace("TRIM", "").replace("INVITATION", "ANSWER: <think>\n")
TRIMS_ANSWERS = _UNCLOSED.replace("END", " ;\n").replace("TRIM", "| trim").replace("INVITATION", "ANSWER: ")
UNCLOSED = _ENDED.replace("TRIM", "").replace("INVITATION", "ANSWER: ")
UNCLOSED_THOUGHTS = UNCLOSED.replace("+ message.content %}", "+ message.content %}").replace(
    "'ANSWER: ' + message.content",
    "'ANSWER: ' + ('<think>' + message.thinking + '</think>' if message.thinking else '') + message.content",
)
REFUSES = "{% if tools %}{{ raise_exception('no tools here') }}{% endif %}" + CHATML
DOUBLED = "{{ bos_token + bos_token }}" + STABLE
