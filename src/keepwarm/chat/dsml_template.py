"""Chat templates of ours for DeepSeek V3.2 and V4, whose checkpoints bring none.

Their publisher gives code instead of a template. The markup here is theirs, since it is what the
models were trained on; the sentences that introduce the tools are ours. Whoever wants others puts
a `chat_template.jinja` into the model's folder, which wins.

    V3.2  … <｜User｜>question<｜Assistant｜></think>answer <｜DSML｜function_calls>…<｜end▁of▁sentence｜>
          \\n\\n<function_results>\\n<result>…</result>\\n</function_results>\\n\\n</think>answer …
    V4    … <｜User｜>question<｜Assistant｜></think>answer <｜DSML｜tool_calls>…<｜end▁of▁sentence｜>
          <｜User｜><tool_result>…</tool_result><｜Assistant｜></think>answer …

With `thinking` (or `enable_thinking`) an answer opens with `<think>`. V3.2 then shows the thoughts
since the last question and drops older ones; V4 keeps all of them in a conversation with tools.
"""

from __future__ import annotations

_TOOLS = """\
{%- macro describe(tools) -%}
{{- '\\n\\n## Tools\\n\\nThese tools can be called, each described by one JSON object a line:\\n<tools>\\n' }}
{%- for tool in tools %}{{ tool.function | tojson + '\\n' }}{% endfor %}
{{- '</tools>\\n\\nTo call some, end the reply with one block of this form, ' }}
{{- 'an invoke element for each call:\\n' }}
{{- '<｜DSML｜BLOCK>\\n<｜DSML｜invoke name="name of the tool">\\n' }}
{{- '<｜DSML｜parameter name="name of the parameter" string="true">its text, as it is' }}
{{- '</｜DSML｜parameter>\\n' }}
{{- '<｜DSML｜parameter name="name of another" string="false">its value in JSON' }}
{{- '</｜DSML｜parameter>\\n</｜DSML｜invoke>\\n</｜DSML｜BLOCK>\\n' }}
{{- 'A text is written as it is, with string="true" and no quotes; every other value is JSON, with ' }}
{{- 'string="false". What the tools return comes in the next message.' }}
{%- endmacro -%}
{%- macro invoke(function) -%}
{{- '<｜DSML｜invoke name="' + function.name + '">\\n' }}
{%- for key, value in function.arguments.items() %}
{%- if value is string %}
{{- '<｜DSML｜parameter name="' + key + '" string="true">' + value + '</｜DSML｜parameter>\\n' }}
{%- else %}
{{- '<｜DSML｜parameter name="' + key + '" string="false">' + value | tojson + '</｜DSML｜parameter>\\n' }}
{%- endif %}
{%- endfor %}
{{- '</｜DSML｜invoke>\\n' }}
{%- endmacro -%}
{%- set thinks = thinking | default(enable_thinking | default(false)) -%}
{%- set opening = '<think>' if thinks else '</think>' -%}
{%- set ns = namespace(last_question=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' %}{% set ns.last_question = loop.index0 %}{% endif -%}
{%- endfor -%}
{{- bos_token }}
{%- if tools and (not messages or messages[0].role != 'system') %}{{ describe(tools) }}{% endif %}
"""

_ANSWER = """\
{%- elif message.role == 'assistant' %}
{%- if SHOWS_THOUGHTS %}
{{- '<think>' + (message.reasoning_content or '') + '</think>' }}
{%- else %}{{ '</think>' }}{% endif %}
{{- message.content }}
{%- if message.tool_calls %}
{{- '\\n\\n<｜DSML｜BLOCK>\\n' }}
{%- for call in message.tool_calls %}{{ invoke(call.function) }}{% endfor %}
{{- '</｜DSML｜BLOCK>' }}
{%- endif %}
{{- eos_token }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ opening }}{% endif %}"""

_SYSTEM = """\
{%- for message in messages %}
{%- if message.role == 'system' %}
{{- message.content }}{% if tools and loop.first %}{{ describe(tools) }}{% endif %}
"""

_V32_ASKED = """\
{%- elif message.role == 'user' %}
{{- '<｜User｜>' + message.content + '<｜Assistant｜>' }}
{%- elif message.role == 'tool' %}
{%- if loop.previtem is not defined or loop.previtem.role != 'tool' %}
{{- '\\n\\n<function_results>' }}{% endif %}
{{- '\\n<result>' + message.content + '</result>' }}
{%- if loop.nextitem is not defined or loop.nextitem.role != 'tool' %}
{{- '\\n</function_results>\\n\\n' }}{% endif %}
"""

_V4_ASKED = """\
{%- elif message.role in ('user', 'tool') %}
{%- if loop.previtem is defined and loop.previtem.role in ('user', 'tool') %}{{ '\\n\\n' }}
{%- else %}{{ '<｜User｜>' }}{% endif %}
{%- if message.role == 'tool' %}{{ '<tool_result>' + message.content + '</tool_result>' }}
{%- else %}{{ message.content }}{% endif %}
{%- if loop.nextitem is not defined or loop.nextitem.role not in ('user', 'tool') %}
{{- '<｜Assistant｜>' }}{% endif %}
"""

_SINCE_THE_QUESTION = "thinks and loop.index0 > ns.last_question"
_ALWAYS_WITH_TOOLS = f"thinks and (tools or {_SINCE_THE_QUESTION})"

DEEPSEEK_V32_TEMPLATE = (
    (_TOOLS + _SYSTEM + _V32_ASKED + _ANSWER)
    .replace("BLOCK", "function_calls")
    .replace("SHOWS_THOUGHTS", _SINCE_THE_QUESTION)
)
DEEPSEEK_V4_TEMPLATE = (
    (_TOOLS + _SYSTEM + _V4_ASKED + _ANSWER)
    .replace("BLOCK", "tool_calls")
    .replace("SHOWS_THOUGHTS", _ALWAYS_WITH_TOOLS)
)

TEMPLATES_BY_MODEL_TYPE = {
    "deepseek_v32": DEEPSEEK_V32_TEMPLATE,
    "deepseek_v4": DEEPSEEK_V4_TEMPLATE,
}
"""By `model_type` of config.json; used where a folder has no template of its own."""
