"""Chat templates in the habits of well-known families, cut down to what concerns calls.

Written here after what those families' own templates do: the markup and its oddities are theirs.
"""

from __future__ import annotations

DEEPSEEK_V3 = """{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ message.content }}
{%- if tools %}{{ '\\n\\n## Tools\\n' + tools | tojson }}{% endif %}
{%- elif message.role == 'user' %}{{ '<｜User｜>' + message.content }}
{%- elif message.role == 'tool' %}
{{- '<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + message.content }}
{{- '<｜tool▁output▁end｜><｜tool▁outputs▁end｜>' }}
{%- elif message.tool_calls %}
{{- '<｜Assistant｜>' + message.content + '<｜tool▁calls▁begin｜>' }}
{%- for call in message['tool_calls'] %}
{{- '<｜tool▁call▁begin｜>' + call['type'] + '<｜tool▁sep｜>' + call['function']['name'] + '\\n```json\\n' }}
{{- call['function']['arguments'] + '\\n```<｜tool▁call▁end｜>' }}
{%- endfor %}
{{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
{%- else %}{{ '<｜Assistant｜>' + message.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"""
"""R1 and V3: arguments put together as text, in a fence."""

DEEPSEEK_V31 = """{%- if thinking is not defined %}{% set thinking = false %}{% endif %}
{%- set ns = namespace(after_user=false) %}
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ message.content }}
{%- if tools %}{{ '\\n\\n## Tools\\n' + tools | tojson }}{% endif %}
{%- elif message.role == 'user' %}{{ '<｜User｜>' + message.content }}{% set ns.after_user = true %}
{%- elif message.role == 'tool' %}
{%- set ns.after_user = false %}
{{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
{%- else %}
{%- if ns.after_user %}{{ '<｜Assistant｜></think>' }}{% endif %}
{%- set ns.after_user = false %}
{{- message.content }}
{%- if message.tool_calls %}{{ '<｜tool▁calls▁begin｜>' }}
{%- for call in message.tool_calls %}
{{- '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' + call.function.arguments }}
{{- '<｜tool▁call▁end｜>' }}
{%- endfor %}{{ '<｜tool▁calls▁end｜>' }}{% endif %}
{{- '<｜end▁of▁sentence｜>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and ns.after_user %}
{{- '<｜Assistant｜>' + ('<think>' if thinking else '</think>') }}{% endif %}"""
"""Arguments as text; after a tool's output the answer has no header at all."""

MISTRAL_ARRAY = """{%- if messages[0]['role'] == 'system' %}
{%- set system_message = messages[0]['content'] %}{% set loop_messages = messages[1:] %}
{%- else %}{% set loop_messages = messages %}{% endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
{%- if not (message.role == 'tool' or message.tool_calls) %}
{%- if (message.role == 'user') != (ns.index % 2 == 0) %}
{{- raise_exception('conversation roles must alternate user/assistant') }}{% endif %}
{%- set ns.index = ns.index + 1 %}{% endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
{%- if message.role == 'user' %}
{%- if tools and loop.index0 == 0 %}
{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST]' }}{% if loop.index0 == 0 and system_message %}{{ system_message + '\\n\\n' }}{% endif %}
{{- message.content + '[/INST]' }}
{%- elif message.tool_calls %}
{{- '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}
{{- (call.function | tojson)[:-1] }}
{%- if call.id is not defined or call.id | length != 9 %}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}
{{- ', "id": "' + call.id + '"}' + (', ' if not loop.last else '') }}
{%- endfor %}
{{- ']' + eos_token }}
{%- elif message.role == 'assistant' %}{{ message.content + eos_token }}
{%- elif message.role == 'tool' %}
{%- if message.tool_call_id | length != 9 %}{{ raise_exception('9 characters!') }}{% endif %}
{{- '[TOOL_RESULTS]{"content": ' + message.content + ', "call_id": "' + message.tool_call_id }}
{{- '"}[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}"""
"""Calls as one JSON array, ids of nine characters, roles that must alternate."""

MISTRAL_CALL_ID = """{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
{%- elif message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS]' + message.tool_call_id + '[TOOL_CONTENT]' + message.content + '[/TOOL_RESULTS]' }}
{%- elif message.tool_calls %}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('9 characters!') }}{% endif %}
{{- '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id }}
{{- '[ARGS]' + call.function.arguments | tojson }}
{%- endfor %}
{{- eos_token }}
{%- else %}{{ message.content + eos_token }}
{%- endif %}
{%- endfor %}"""

MISTRAL_ARGS = """{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
{%- elif message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- elif message.role == 'tool' %}{{ '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
{%- else %}
{%- if message.reasoning_content %}{{ '[THINK]' + message.reasoning_content + '[/THINK]' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{%- set arguments = call.function.arguments %}
{%- if arguments is not string %}{% set arguments = arguments | tojson %}{% endif %}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + arguments }}
{%- endfor %}
{{- eos_token }}
{%- endif %}
{%- endfor %}"""

_GLM = """[gMASK]<sop>
{%- if tools %}{{ '<|system|>\\n# Tools\\n<tools>\\n' }}
{%- for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}
{{- '</tools>\\n<tool_call>{function-name}LINE<arg_key>{arg-key}</arg_key>' }}
{{- 'LINE<arg_value>{arg-value}</arg_value>LINE</tool_call>' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '<|user|>\\n' + m.content }}
{%- elif m.role == 'system' %}{{ '<|system|>\\n' + m.content }}
{%- elif m.role == 'tool' %}{{ '<|observation|>\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- else %}{{ '<|assistant|>\\n<think>' + (m.reasoning_content or '') + '</think>\\n' + m.content }}
{%- for tc in m.tool_calls or [] %}
{%- set tc = tc.function %}
{{- '\\n<tool_call>' + tc.name }}
{%- for k, v in tc.arguments.items() %}
{{- 'LINE<arg_key>' + k + '</arg_key>LINE<arg_value>' }}
{{- (v if v is string else v | tojson) + '</arg_value>' }}
{%- endfor %}
{{- 'LINE</tool_call>' }}
{%- endfor %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
GLM45 = _GLM.replace("LINE", "\\n")
GLM47 = _GLM.replace("LINE", "")

GEMMA3 = """{{- bos_token }}
{%- if messages[0].role == 'system' %}
{%- set prefix = messages[0].content + '\\n\\n' %}{% set loop_messages = messages[1:] %}
{%- else %}{% set prefix = '' %}{% set loop_messages = messages %}{% endif %}
{%- for message in loop_messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
{{- (prefix if loop.first else '') + message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
"""Knows no tools."""

_GEMMA_CALLS = """
{%- macro value_of(value) -%}
{%- if value is string %}{{ 'QUOTE' + value + 'QUOTE' }}
{%- elif value is boolean %}{{ 'true' if value else 'false' }}
{%- elif value is none %}{{ 'null' }}
{%- elif value is mapping %}{{ '{' }}{% for k, v in value | dictsort %}
{{- k + ':' + value_of(v) + (',' if not loop.last else '') }}{% endfor %}{{ '}' }}
{%- elif value is sequence %}{{ '[' }}{% for v in value %}
{{- value_of(v) + (',' if not loop.last else '') }}{% endfor %}{{ ']' }}
{%- else %}{{ value }}{% endif %}
{%- endmacro -%}"""

FUNCTION_GEMMA = (
    _GEMMA_CALLS
    + """{{- bos_token }}
{%- if tools or messages[0].role == 'system' %}{{ '<start_of_turn>developer\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- for tool in tools or [] %}
{{- '<start_function_declaration>declaration:' + tool.function.name + value_of(tool.function) }}
{{- '<end_function_declaration>' }}{% endfor %}{{ '<end_of_turn>\\n' }}{% endif %}
{%- for message in messages if message.role != 'system' %}
{%- if message.role == 'tool' %}
{{- '<start_function_response>response:' + message.name + '{value:' + value_of(message.content) }}
{{- '}<end_function_response>' }}
{%- else %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<start_function_call>call:' + call.function.name + value_of(call.function.arguments) }}
{{- '<end_function_call>' }}{% endfor %}{{ '<end_of_turn>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
).replace("QUOTE", "<escape>")

GEMMA4 = (
    _GEMMA_CALLS
    + """{{- bos_token }}
{%- if tools or messages[0].role == 'system' %}{{ '<|turn>system\\n' }}
{%- if enable_thinking %}{{ '<|think|>\\n' }}{% endif %}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- for tool in tools or [] %}
{{- '<|tool>declaration:' + tool.function.name + value_of(tool.function) + '<tool|>' }}
{%- endfor %}{{ '<turn|>\\n' }}{% endif %}
{%- for message in messages if message.role != 'system' %}
{%- if message.role == 'tool' %}
{{- '<|tool_response>response:' + message.name + '{value:' + value_of(message.content) }}
{{- '}<tool_response|>' }}
{%- else %}
{{- '<|turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
{%- if message.reasoning_content and message.tool_calls %}
{{- '<|channel>thought\\n' + message.reasoning_content + '\\n<channel|>' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<|tool_call>call:' + call.function.name + value_of(call.function.arguments) + '<tool_call|>' }}
{%- endfor %}{{ '<turn|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|turn>model\\n' }}{% endif %}"""
).replace("QUOTE", '<|"|>')

HARMONY = """{{- '<|start|>system<|message|>Valid channels: analysis, commentary, final.<|end|>' }}
{%- set ns = namespace(tool=none) %}
{%- if messages[0].role == 'system' or tools %}
{{- '<|start|>developer<|message|>' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- if tools %}{{ '\\n# Tools\\nnamespace functions ' + tools | tojson }}{% endif %}{{ '<|end|>' }}{% endif %}
{%- for message in messages if message.role != 'system' %}
{%- if message.role == 'user' %}{{ '<|start|>user<|message|>' + message.content + '<|end|>' }}
{%- elif message.role == 'tool' %}
{%- if ns.tool is none %}{{ raise_exception('tool role without a tool call before it') }}{% endif %}
{{- '<|start|>functions.' + ns.tool + ' to=assistant<|channel|>commentary<|message|>' }}
{{- message.content | tojson + '<|end|>' }}
{%- elif message.tool_calls %}
{%- set call = message.tool_calls[0].function %}
{%- if message.content and message.thinking %}
{{- raise_exception('Cannot pass both content and thinking in an assistant message with tool calls!') }}
{%- elif message.content or message.thinking %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + (message.content or message.thinking) + '<|end|>' }}
{%- endif %}
{{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}
{{- call.arguments | tojson + '<|call|>' }}
{%- set ns.tool = call.name %}
{%- else %}{{ '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""
"""One call a message, and no text beside thoughts that go with it."""

LLAMA3_ONE_CALL = """{{- bos_token }}
{%- if tools %}{{ '<|start_header_id|>system<|end_header_id|>\\n\\n' + tools | tojson }}
{{- ' Respond in the format {"name": function name, "parameters": {}}<|eot_id|>' }}{% endif %}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}
{{- raise_exception('This model only supports single tool-calls at once!') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson + '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

HERMES = """{%- if tools %}{{ '<|im_start|>system\\n<tools>\\n' }}
{%- for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}
{{- '</tools>\\n<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>' }}
{{- '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}{{ '<|im_start|>assistant\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

QWEN3_CODER = """{%- if tools %}{{ '<|im_start|>system\\n<tools>' }}
{%- for tool in tools %}{{ '\\n<function>\\n<name>' + tool.function.name + '</name></function>' }}{% endfor %}
{{- '</tools>\\n<tool_call>\\n<function=example>\\n<parameter=one>\\nvalue\\n</parameter>' }}
{{- '\\n</function>\\n</tool_call><|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}{{ '<|im_start|>assistant\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for key, value in call.function.arguments | items %}
{{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
{%- endfor %}{{ '</function>\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

FACSIMILES = {
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v3.1": DEEPSEEK_V31,
    "mistral-array": MISTRAL_ARRAY,
    "mistral-call-id": MISTRAL_CALL_ID,
    "mistral-args": MISTRAL_ARGS,
    "glm-4.5": GLM45,
    "glm-4.7": GLM47,
    "gemma-3": GEMMA3,
    "function-gemma": FUNCTION_GEMMA,
    "gemma-4": GEMMA4,
    "gpt-oss": HARMONY,
    "llama-3": LLAMA3_ONE_CALL,
    "hermes": HERMES,
    "qwen3-coder": QWEN3_CODER,
}
