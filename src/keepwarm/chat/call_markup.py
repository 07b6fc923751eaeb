"""How each tool format writes a call, as parts of a structural tag.

A format whose notation cannot be written so is forced to bare JSON, which every parser reads.

Source: xgrammar's structural tags; the chat templates of the families.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_WHITESPACE: Final = 16
"""Characters in a row inside an answer's JSON: a small model at a high temperature would write
nothing else. In arguments it is one, which is what sets their parts apart; in XML around them,
white space would be part of the value."""

Form = dict[str, Any]
"""A part of a structural tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMarkup:
    """What stands around a call's arguments, and around all calls of an answer."""

    begin: Callable[[str], str]
    """A tool's name → what stands before its arguments."""
    end: str
    style: str = "json"
    """How xgrammar spells the arguments."""
    before_all: str = ""
    between: str = ""
    after_all: str = ""
    takes_several: bool = True

    def calls(self, schemas: Sequence[tuple[str, Form]], *, several: bool) -> Form:
        """One call of one of the tools, or `several`. `schemas`: a tool's name and its arguments'."""
        tags = [
            tag(self.begin(name), json_form(schema, self.style, max_whitespace=1), self.end)
            for name, schema in schemas
        ]
        each = {
            "type": "tags_with_separator",
            "tags": tags,
            "separator": self.between,
            "at_least_one": True,
            "stop_after_first": not (several and self.takes_several),
        }
        return sequence(literal(self.before_all), each, literal(self.after_all))


def json_form(schema: Any, style: str = "json", *, max_whitespace: int = MAX_WHITESPACE) -> Form:
    """JSON by a schema, or what a style makes of it."""
    return {
        "type": "json_schema",
        "json_schema": schema,
        "style": style,
        "max_whitespace_cnt": max_whitespace,
    }


def tag(begin: str, content: Form, end: str) -> Form:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def literal(text: str) -> Form | None:
    return {"type": "const_string", "value": text} if text else None


def sequence(*forms: Form | None) -> Form:
    """One after the other; None is nothing."""
    present = [form for form in forms if form is not None]
    return present[0] if len(present) == 1 else {"type": "sequence", "elements": present}


def _json_call(before: str, arguments_key: str) -> Callable[[str], str]:
    return lambda name: f'{before}{{"name": {json.dumps(name, ensure_ascii=False)}, "{arguments_key}": '


_HERMES = CallMarkup(begin=_json_call("<tool_call>\n", "arguments"), end="}\n</tool_call>", between="\n")
_QWEN3_CODER = CallMarkup(
    begin=lambda name: f"<tool_call>\n<function={name}>\n",
    end="\n</function>\n</tool_call>",
    style="qwen_xml",
    between="\n",
)
_BARE = CallMarkup(begin=_json_call("", "arguments"), end="}", between="\n")
_LLAMA3 = CallMarkup(begin=_json_call("", "parameters"), end="}", between="; ")
_MISTRAL = CallMarkup(begin=lambda name: f"[TOOL_CALLS]{name}[ARGS]", end="")
_MISTRAL_LIST = CallMarkup(
    begin=_json_call("", "arguments"), end="}", before_all="[TOOL_CALLS][", between=", ", after_all="]"
)
_DEEPSEEK_V3 = CallMarkup(
    begin=lambda name: f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
    end="<｜tool▁call▁end｜>",
    before_all="<｜tool▁calls▁begin｜>",
    after_all="<｜tool▁calls▁end｜>",
)
_DEEPSEEK_R1 = CallMarkup(
    begin=lambda name: f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
    end="\n```<｜tool▁call▁end｜>",
    before_all="<｜tool▁calls▁begin｜>",
    between="\n",
    after_all="<｜tool▁calls▁end｜>",
)
_GLM = CallMarkup(
    begin=lambda name: f"<tool_call>{name}\n", end="</tool_call>", style="glm_xml", between="\n"
)
_GEMMA4 = CallMarkup(begin=lambda name: f"<|tool_call>call:{name}", end="<tool_call|>", style="gemma")
HARMONY = CallMarkup(
    begin=lambda name: f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
    end="",
    takes_several=False,
)


def _dsml(block: str) -> CallMarkup:
    return CallMarkup(
        begin=lambda name: f'<｜DSML｜invoke name="{name}">\n',
        end="</｜DSML｜invoke>\n",
        style="deepseek_xml",
        before_all=f"\n\n<｜DSML｜{block}>\n",
        after_all=f"</｜DSML｜{block}>",
    )


def call_markup(tool_format: str, template: str) -> CallMarkup:
    """By the format's name; where a family has several ways, the one that the chat template writes."""
    match tool_format:
        case "qwen3_coder":
            return _QWEN3_CODER
        case "llama3_json":
            return _LLAMA3
        case "mistral":
            return _MISTRAL if "[ARGS]" in template else _MISTRAL_LIST
        case "deepseek_v3":
            return _DEEPSEEK_R1 if "```json" in template else _DEEPSEEK_V3
        case "dsml":
            return _dsml("function_calls" if "function_calls" in template else "tool_calls")
        case "glm":
            return _GLM
        case "gemma4":
            return _GEMMA4
        case "harmony":
            return HARMONY
        case "hermes" | "gemma3":
            return _HERMES
        case _:
            return _BARE
