"""Answers of each family with what they say: as they should be, sloppy, broken off, no calls at all."""

from __future__ import annotations

from dataclasses import dataclass, field

from keepwarm.chat.parsing.deepseek_v3 import DEEPSEEK_V3
from keepwarm.chat.parsing.dsml import DSML
from keepwarm.chat.parsing.gemma import FUNCTION_GEMMA, GEMMA4
from keepwarm.chat.parsing.gemma3 import GEMMA3
from keepwarm.chat.parsing.glm import GLM
from keepwarm.chat.parsing.harmony import HARMONY
from keepwarm.chat.parsing.mistral import MISTRAL
from keepwarm.chat.parsing.parser import ToolFormat
from tests.chat.parsing.reading import Call, Read

LS = Call("Bash", {"command": "ls"})
READ = Call("Read", {"path": 'a\n"b" é 🎈 <c>', "limit": 3})
STAT = Call("Stat", {})


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """One format's answers. `sloppy` ones mean only one thing; `broken` ones count as malformed."""

    markup: ToolFormat
    well_formed: dict[str, Read]
    sloppy: dict[str, Read] = field(default_factory=dict)
    broken: dict[str, Read] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    """Text to the last byte, and counted once."""
    plain: tuple[str, ...] = ()
    """Text to the last byte, and nothing amiss."""


def says(*parts: str | Call, reasoning: str = "", num_malformed: int = 0) -> Read:
    return Read(parts=parts, reasoning=reasoning, num_malformed=num_malformed)


def _v3(*calls: str) -> str:
    inside = "\n".join(f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>" for call in calls)
    return f"<｜tool▁calls▁begin｜>{inside}<｜tool▁calls▁end｜>"


_V3_LS = 'Bash<｜tool▁sep｜>{"command": "ls"}'
_V3_READ = 'Read<｜tool▁sep｜>{"path": "a\\n\\"b\\" é 🎈 <c>", "limit": 3}'
_V3_FENCED = 'function<｜tool▁sep｜>Bash\n```json\n{"command": "ls"}\n```'

DEEPSEEK_V3_CORPUS = Corpus(
    markup=DEEPSEEK_V3,
    well_formed={
        "": says(),
        "Words, 1 < 2, <｜tool and <｜tool▁call▁end": says("Words, 1 < 2, <｜tool and <｜tool▁call▁end"),
        _v3(_V3_LS): says(LS),
        f"I look.\n{_v3(_V3_READ)}": says("I look.", READ),
        _v3(_V3_LS, _V3_READ): says(LS, READ),
        f"One\n{_v3(_V3_LS)}\nTwo\n{_v3(_V3_READ)} three": says("One", LS, "Two", READ, "three"),
        _v3(_V3_FENCED): says(LS),
        _v3(_V3_FENCED, _V3_FENCED) + "\nDone.": says(LS, LS, "Done."),
        _v3("Stat<｜tool▁sep｜>{}"): says(STAT),
    },
    sloppy={
        "<｜tool▁call▁begin｜>" + _V3_LS + "<｜tool▁call▁end｜>": says(LS),
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>" + _V3_LS: says(LS),
        _v3("Stat<｜tool▁sep｜>"): says(STAT),
        _v3("Stat<｜tool▁sep｜>null"): says(STAT),
        _v3("function<｜tool▁sep｜>Bash\n```\n{'x'}".replace("{'x'}", '{"command": "ls"}\n```')): says(LS),
        _v3('function<｜tool▁sep｜>Bash\n{"command": "ls"}'): says(LS),
        _v3('Bash<｜tool▁sep｜>"{\\"command\\": \\"ls\\"}"'): says(LS),
    },
    broken={
        '<｜tool▁call▁begin｜>Bash<｜tool▁sep｜>{"command": "l': says(
            Call("Bash", {"command": "l"}), num_malformed=1
        ),
        _v3('Bash<｜tool▁sep｜>{"command": ls}', _V3_LS): says(Call("Bash", {}), "ls}", LS, num_malformed=1),
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
        + _V3_LS
        + "<｜tool▁call▁end｜><｜tool▁call▁begin｜>Re": says(LS, "<｜tool▁call▁begin｜>Re", num_malformed=1),
    },
    unreadable=(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>Bash",
        "<｜tool▁calls▁begin｜>no call<｜tool▁calls▁end｜>",
        _v3("two words<｜tool▁sep｜>{}"),
        "<｜tool▁call▁begin｜>" + "n" * 700,
    ),
    plain=("｜tool▁sep｜", " \n "),
)


def _dsml(*calls: str, block: str = "tool_calls") -> str:
    return "\n".join([f"<｜DSML｜{block}>", *calls, f"</｜DSML｜{block}>"])


def _invoke(name: str, *parameters: str) -> str:
    return "\n".join([f'<｜DSML｜invoke name="{name}">', *parameters, "</｜DSML｜invoke>"])


def _parameter(name: str, value: str, is_string: str = "true") -> str:
    return f'<｜DSML｜parameter name="{name}" string="{is_string}">{value}</｜DSML｜parameter>'


_DSML_LS = _invoke("Bash", _parameter("command", "ls"))
_DSML_READ = _invoke("Read", _parameter("path", 'a\n"b" é 🎈 <c>'), _parameter("limit", "3", "false"))

DSML_CORPUS = Corpus(
    markup=DSML,
    well_formed={
        "": says(),
        "Words, 1 < 2 and <｜DSML｜ and </｜DSML": says("Words, 1 < 2 and <｜DSML｜ and </｜DSML"),
        _dsml(_DSML_LS): says(LS),
        _dsml(_DSML_READ, block="function_calls"): says(READ),
        f"I look.\n\n{_dsml(_DSML_LS, _DSML_READ)}": says("I look.", LS, READ),
        f"One\n\n{_dsml(_DSML_LS)}\nTwo\n\n{_dsml(_DSML_READ)}\n": says("One", LS, "Two", READ),
        _dsml(_invoke("Stat")): says(STAT),
        _dsml(_invoke("unknown", _parameter("x", '[1, {"y": null}]', "false"))): says(
            Call("unknown", {"x": [1, {"y": None}]})
        ),
        _dsml(
            _invoke("Read", _parameter("tags", '["a"]', "false"), _parameter("deep", "true", "false"))
        ): says(Call("Read", {"tags": ["a"], "deep": True})),
    },
    sloppy={
        _DSML_LS: says(LS),
        f"So:\n{_DSML_LS}\n{_DSML_READ}\nDone.": says("So:", LS, READ, "Done."),
        "<｜DSML｜function_calls>\n" + _DSML_LS + "\n</｜DSML｜tool_calls>": says(LS),
        "<｜DSML｜tool_calls>\n" + _DSML_LS: says(LS),
        _dsml('<｜DSML｜invoke name="Stat"/>', _DSML_LS): says(STAT, LS),
        _dsml(_DSML_LS).replace("\n", ""): says(LS),
        _dsml("<｜DSML｜invoke name='Bash'>" + _parameter("command", "ls") + "</｜DSML｜invoke>"): says(LS),
        _dsml(_invoke("Read", '<｜DSML｜parameter name="limit">3</｜DSML｜parameter>')): says(
            Call("Read", {"limit": 3})
        ),
        _dsml(_invoke("Read", _parameter("limit", "3", "true"))): says(Call("Read", {"limit": 3})),
        _dsml(_invoke("Read", _parameter("path", "3", "false"))): says(Call("Read", {"path": "3"})),
        _dsml(_invoke("Bash", '<｜DSML｜parameter name="command" string="true">ls')): says(
            Call("Bash", {"command": "ls\n"})
        ),
    },
    broken={
        '<｜DSML｜invoke name="Bash"><｜DSML｜parameter name="command" string="true">l': says(
            Call("Bash", {"command": "l"}), num_malformed=1
        ),
        '<｜DSML｜invoke name="Read"><｜DSML｜parameter name="tags" string="false">["a", "b': says(
            Call("Read", {"tags": ["a", "b"]}), num_malformed=1
        ),
        _dsml(_invoke("Bash", _parameter("command", "ls"), "oops")): says(LS, "oops\n", num_malformed=1),
        _dsml(_invoke("Bash", "<｜DSML｜parameter nothing>", _parameter("command", "ls"))): says(
            Call("Bash", {}), _parameter("command", "ls") + "\n", num_malformed=1
        ),
        "Done.</｜DSML｜tool_calls>": says("Done.</｜DSML｜tool_calls>", num_malformed=1),
        _DSML_LS + "\n<｜DSML｜invoke name=": says(LS, "<｜DSML｜invoke name=", num_malformed=1),
    },
    unreadable=(
        "<｜DSML｜tool_calls>",
        "<｜DSML｜tool_calls>\nno call",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="Bash">',
        "<｜DSML｜invoke " + "n" * 700,
        "<｜DSML｜invoke>",
        '<｜DSML｜invoke name="Bash">words',
        '<｜DSML｜invoke name="two words">',
        _dsml(),
    ),
    plain=("<｜DSML｜parameter", "｜DSML｜", " \n "),
)

_ARRAY_LS = '{"name": "Bash", "arguments": {"command": "ls"}, "id": "aB3dE6gH9"}'
_ARRAY_READ = '{"name": "Read", "arguments": {"path": "a\\n\\"b\\" é 🎈 <c>", "limit": 3}}'
_ARGS_LS = '[TOOL_CALLS]Bash[ARGS]{"command": "ls"}'
_ARGS_READ = '[TOOL_CALLS]Read[ARGS]{"path": "a\\n\\"b\\" é 🎈 <c>", "limit": 3}'

MISTRAL_CORPUS = Corpus(
    markup=MISTRAL,
    well_formed={
        "": says(),
        "Words, a[1] and [TOOL_CALLS": says("Words, a[1] and [TOOL_CALLS"),
        f"[TOOL_CALLS][{_ARRAY_LS}]": says(LS),
        f"[TOOL_CALLS] [{_ARRAY_LS}, {_ARRAY_READ}]": says(LS, READ),
        f"I look.[TOOL_CALLS] [{_ARRAY_READ}]": says("I look.", READ),
        _ARGS_LS: says(LS),
        _ARGS_LS + _ARGS_READ: says(LS, READ),
        f"I look.{_ARGS_READ}": says("I look.", READ),
        '[TOOL_CALLS]Bash[CALL_ID]aB3dE6gH9[ARGS]{"command": "ls"}': says(LS),
        "[TOOL_CALLS]Stat[ARGS]{}": says(STAT),
        f"[THINK]I must look.[/THINK]So:{_ARGS_LS}": says("So:", LS, reasoning="I must look."),
    },
    sloppy={
        '[TOOL_CALLS]Bash{"command": "ls"}': says(LS),
        '[TOOL_CALLS] Bash [ARGS] {"command": "ls"}\n' + _ARGS_READ: says(LS, READ),
        f"[TOOL_CALLS]{_ARRAY_LS}": says(LS),
        f"[TOOL_CALLS][{_ARRAY_LS}": says(LS),
        '[TOOL_CALLS]Bash[CALL_ID]aB3dE6gH9{"command": "ls"}': says(LS),
        "[TOOL_CALLS]Stat[ARGS]null": says(STAT),
        f"[THINK]I must look.{_ARGS_LS}": says(LS, reasoning="I must look."),
        f"{_ARGS_LS} Done.": says(LS, "Done."),
        "[THINK]I must": says(reasoning="I must"),
    },
    broken={
        '[TOOL_CALLS]Bash[ARGS]{"command": "l': says(Call("Bash", {"command": "l"}), num_malformed=1),
        '[TOOL_CALLS][{"name": "Bash", "arguments": {"command": "l': says(
            Call("Bash", {"command": "l"}), num_malformed=1
        ),
        f'[TOOL_CALLS]Bash[ARGS]{{"command": ls}}{_ARGS_LS}': says(
            Call("Bash", {}), "ls}", LS, num_malformed=1
        ),
        f"{_ARGS_LS}[TOOL_CALLS]Re": says(LS, "[TOOL_CALLS]Re", num_malformed=1),
    },
    unreadable=(
        "[TOOL_CALLS]",
        "[TOOL_CALLS]Bash",
        "[TOOL_CALLS]Bash[ARGS]",
        "[TOOL_CALLS]Bash[ARGS]ls",
        "[TOOL_CALLS]Bash[CALL_ID]aB3dE6gH9",
        "[TOOL_CALLS]two words[ARGS]{}",
        "[TOOL_CALLS]" + "n" * 700,
        "[TOOL_CALLS][]",
    ),
    plain=("[ARGS]{}", "x = [1]\n[TOOL]", " \n "),
)


def _glm(name: str, *members: tuple[str, str], line: str = "\n") -> str:
    inside = [f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}" for key, value in members]
    return f"<tool_call>{name}{line}{''.join(inside)}</tool_call>"


_GLM_LS, _GLM_READ = ("command", "ls"), (("path", 'a\n"b" é 🎈 <c>'), ("limit", "3"))

GLM_CORPUS = Corpus(
    markup=GLM,
    well_formed={
        "": says(),
        "Words, 1 < 2 and <tool and </tool_call": says("Words, 1 < 2 and <tool and </tool_call"),
        _glm("Bash", _GLM_LS): says(LS),
        _glm("Read", *_GLM_READ, line=""): says(READ),
        f"I look.\n{_glm('Bash', _GLM_LS)}\n{_glm('Read', *_GLM_READ)}": says("I look.", LS, READ),
        f"One\n{_glm('Bash', _GLM_LS)}\nTwo {_glm('Read', *_GLM_READ, line='')} three": says(
            "One", LS, "Two", READ, "three"
        ),
        _glm("Stat", line=""): says(STAT),
        _glm("Stat"): says(STAT),
        _glm("Read", ("tags", '["a", "b"]'), ("deep", "false"), ("path", "7")): says(
            Call("Read", {"tags": ["a", "b"], "deep": False, "path": "7"})
        ),
        _glm("unknown", ("x", "7"), ("y", "seven"), ("z", "")): says(
            Call("unknown", {"x": 7, "y": "seven", "z": ""})
        ),
    },
    sloppy={
        "<tool_call>Bash<arg_key>command</arg_key>ls</arg_value></tool_call>": says(LS),
        "<tool_call>Bash<arg_key>command</arg_key></arg_key><arg_value>ls</arg_value></tool_call>": says(LS),
        "<tool_call>Bashcommand</arg_key><arg_value>ls</arg_value></tool_call>": says(LS),
        "<tool_call>Bash command</arg_key><arg_value>ls</arg_value></tool_call>": says(LS),
        "<tool_call>\nBash\n\n<arg_key>command</arg_key>\n\n<arg_value>ls</arg_value></tool_call>": says(LS),
        "<tool_call>Bash<arg_key>command<arg_value>ls</arg_value></tool_call>": says(LS),
    },
    broken={
        "<tool_call>Bash\n<arg_key>command</arg_key>\n<arg_value>l": says(
            Call("Bash", {"command": "l"}), num_malformed=1
        ),
        "<tool_call>Bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n": says(LS, num_malformed=1),
        "<tool_call>Read<arg_key>limit": says(Call("Read", {}), num_malformed=1),
        "<tool_call>Read<arg_key>tags</arg_key><arg_value>[1, 2": says(
            Call("Read", {"tags": [1, 2]}), num_malformed=1
        ),
        "<tool_call>Bash<arg_key>command</arg_key><arg_value>ls</arg_value>oops</tool_call>on": says(
            LS, "oopson", num_malformed=1
        ),
    },
    unreadable=(
        "<tool_call>",
        "<tool_call>Bash",
        "<tool_call>Bash\n",
        "<tool_call>Bash\nwords",
        "<tool_call>some words\n</tool_call>",
        "<tool_call>nobodykey</arg_key><arg_value>x</arg_value></tool_call>",
        "<tool_call></tool_call>",
        "</tool_call> x",
        "<tool_call>" + "n" * 700,
    ),
    plain=("<arg_key>x</arg_key>", " \n "),
)


def _gemma(opening: str, closing: str, quote: str) -> Corpus:
    def block(call: str) -> str:
        return f"{opening}call:{call}{closing}".replace("'", quote)

    ls, read = block("Bash{command:'ls'}"), block("Read{path:'a\n\"b\" é 🎈 <c>',limit:3}")
    nested = block("x:y-z.w{a:[1,'two',{b:null,c:[]}],d:{},e:-1.5,f:true}")
    return Corpus(
        markup=GEMMA4 if opening == "<|tool_call>" else FUNCTION_GEMMA,
        well_formed={
            "": says(),
            "Words, 1 < 2 and <| and <start": says("Words, 1 < 2 and <| and <start"),
            ls: says(LS),
            ls + read: says(LS, READ),
            f"I look.\n{read}\nDone.": says("I look.", READ, "Done."),
            block("Stat{}"): says(STAT),
            nested: says(
                Call("x:y-z.w", {"a": [1, "two", {"b": None, "c": []}], "d": {}, "e": -1.5, "f": True})
            ),
            block("Read{limit:'3',tags:['a','b, c}']}"): says(
                Call("Read", {"limit": 3, "tags": ["a", "b, c}"]})
            ),
        },
        sloppy={
            block('Bash{"command": "l\\u0073"}'): says(LS),
            block("Bash{'command':'ls'}"): says(LS),
            block("Bash{ command : ls }"): says(LS),
            block("Bash{command:'ls',}"): says(LS),
            block("Bash{command:'ls'}").removesuffix(closing): says(LS),
            block("Read{path:7,limit:}"): says(Call("Read", {"path": "7", "limit": None})),
            f"{opening}\ncall: Bash {{command:{quote}ls{quote}}}\n{closing}": says(LS),
        },
        broken={
            block("Bash{command:'l").removesuffix(closing): says(
                Call("Bash", {"command": "l"}), num_malformed=1
            ),
            block("Read{tags:['a',['b").removesuffix(closing): says(
                Call("Read", {"tags": ["a", ["b"]]}), num_malformed=1
            ),
            block('Bash{command:"l').removesuffix(closing): says(
                Call("Bash", {"command": "l"}), num_malformed=1
            ),
            block("Read{limit:12").removesuffix(closing): says(Call("Read", {"limit": 12}), num_malformed=1),
            block("Read{lim").removesuffix(closing): says(Call("Read", {}), num_malformed=1),
            block("Bash{command}") + "on": says(Call("Bash", {}), "command}on", num_malformed=1),
            block("Bash{a:" + "[" * 70): says(Call("Bash", {"a": _nested(64)}), "[" * 6, num_malformed=1),
        },
        unreadable=(
            opening,
            f"{opening}call:",
            f"{opening}call:Bash",
            f"{opening}call:two words{{}}{closing}",
            f"{opening}Bash{{}}{closing}",
            f"{opening}call:{'n' * 700}",
        ),
        plain=(closing, quote, " \n ", "call:nobody{}", "I call:Bash{}"),
    )


def _nested(depth: int) -> list[object]:
    return [_nested(depth - 1)] if depth > 1 else []


FUNCTION_GEMMA_CORPUS = _gemma("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA4_CORPUS = _gemma("<|tool_call>", "<tool_call|>", '<|"|>')
GEMMA4_THOUGHTS = Corpus(
    markup=GEMMA4,
    well_formed={
        '<|channel>thought\nhm\n<channel|><|tool_call>call:Bash{command:<|"|>ls<|"|>}<tool_call|>': says(
            LS, reasoning="hm\n"
        ),
        "<|channel>thought\n<channel|>Done.": says("Done."),
        "<|channel>thought\nhm": says(reasoning="hm"),
    },
    sloppy={
        '<|channel>thought\nhm\n<channel|>call:Bash{command:<|"|>ls<|"|>}': says(LS, reasoning="hm\n"),
        '<|channel>thought\nhm<|tool_call>call:Bash{command:<|"|>ls<|"|>}<tool_call|>': says(
            LS, reasoning="hm"
        ),
    },
)

GEMMA3_CORPUS = Corpus(
    markup=GEMMA3,
    well_formed={
        "": says(),
        "```tool_code\nBash(command='ls')\n```": says(LS),
        'I look.\n```tool_code\nprint(Bash(command="ls"))\n```\nDone.': says("I look.", LS, "Done."),
        "```python\nprint(default_api.Bash(command='ls'))\nBash(command='ls')\n```": says(LS, LS),
        '[Read(path="""a\n\\"b\\" \\u00e9 🎈 <c>""", limit=3), Bash(command="ls")]': says(READ, LS),
        "```tool_code\nRead(tags=['a', 'b'], more={'x': [1, None, (True,)]}, deep=False)\n```": says(
            Call("Read", {"tags": ["a", "b"], "more": {"x": [1, None, [True]]}, "deep": False})
        ),
        '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>': says(LS),
        '```json\n{"name": "Bash", "parameters": {"command": "ls"}}\n```': says(LS),
        '```tool_code\n[{"name": "Bash", "arguments": {"command": "ls"}}]\n```': says(LS),
        '[{"name": "Bash", "parameters": {"command": "ls"}}]': says(LS),
    },
    sloppy={
        "[Bash(command='ls')] Done (really).": says(LS, "Done (really)."),
        "```tool_code\nBash(command='ls',)": says(LS),
        "```\nBash(\n  command = 'l\\x73'\n)\n```": says(LS),
        "[Bash(command='l\\\ns')]": says(LS),
        "[Bash(command='\\ud83c \\q \\xzz')]": says(Call("Bash", {"command": "\ufffd \\q \\xzz"})),
        "[Read(deep=true, more={'a': null})]": says(Call("Read", {"deep": True, "more": {"a": None}})),
    },
    broken={
        "[Bash(command='l": says(Call("Bash", {"command": "l"}), num_malformed=1),
        "[Read(more={'a': ['b": says(Call("Read", {"more": {"a": ["b"]}}), num_malformed=1),
        "[Read(more={'a': 1, b": says(Call("Read", {"more": {"a": 1}}), "b", num_malformed=1),
        "[Read(tags=": says(Call("Read", {}), num_malformed=1),
        "[Bash('ls')]": says(Call("Bash", {}), "'ls')]", num_malformed=1),
        f"[Read(tags={'[' * 70}": says(Call("Read", {"tags": _nested(64)}), "[" * 6, num_malformed=1),
    },
    plain=(
        "```python\nprint(nobody(x=1))\n```",
        "```tool_code\nx = Bash\n```\n",
        "[nobody(x=1)]",
        "[1]: note (see Bash)",
        "[Bash]\n(command='ls')",
        "I call [Bash(command='ls')]",
        "```c\nBash(command);\n```",
        "```python",
        "[",
    ),
)

_H_LS = '<|channel|>commentary to=functions.Bash <|constrain|>json<|message|>{"command": "ls"}<|call|>'
_H_READ = (
    "<|channel|>commentary to=functions.Read <|constrain|>json<|message|>"
    '{"path": "a\\n\\"b\\" é 🎈 <c>", "limit": 3}<|call|>'
)
_H_NEXT = "<|start|>assistant"
_H_THOUGHT = "<|channel|>analysis<|message|>hm\n<|end|>" + _H_NEXT

HARMONY_CORPUS = Corpus(
    markup=HARMONY,
    well_formed={
        "": says(),
        "<|channel|>final<|message|>Words, 1 < 2.": says("Words, 1 < 2."),
        "<|channel|>final<|message|>Done.<|return|>": says("Done."),
        f"{_H_THOUGHT}<|channel|>final<|message|>Done.<|return|>": says("Done.", reasoning="hm\n"),
        f"{_H_THOUGHT}{_H_LS}": says(LS, reasoning="hm\n"),
        f"{_H_LS}{_H_NEXT}{_H_READ}": says(LS, READ),
        f"<|channel|>commentary<|message|>I look.<|end|>{_H_NEXT}{_H_LS}": says("I look.", LS),
        f"<|channel|>commentary<|message|>I look.<|end|>{_H_NEXT}<|channel|>final<|message|>So.": says(
            "I look.\n\nSo."
        ),
        f"{_H_THOUGHT}<|channel|>analysis<|message|>ah<|end|>": says(reasoning="hm\n\n\nah"),
        ' to=functions.Bash<|channel|>commentary json<|message|>{"command": "ls"}<|call|>': says(LS),
        f'{_H_THOUGHT} to=functions.Bash<|channel|>commentary json<|message|>{{"command": "ls"}}': says(
            LS, reasoning="hm\n"
        ),
        "<|channel|>commentary to=functions.Stat<|message|>{}": says(STAT),
    },
    sloppy={
        "Just words.": says("Just words."),
        '<|channel|>commentary to=Bash code<|message|>{"command": "ls"}<|call|>': says(LS),
        '<|channel|>analysis to=functions.Bash code<|message|>\n{"command": "ls"}<|call|>': says(LS),
        '<|channel|>commentary to=functions.Bash<|channel|>commentary<|message|>{"command": "ls"}': says(LS),
        f"{_H_NEXT}<|channel|>final<|message|>Done.": says("Done."),
        f"<|channel|>analysis<|message|>hm{_H_NEXT}<|channel|>final<|message|>Done.": says(
            "Done.", reasoning="hm"
        ),
        f"{_H_NEXT}<|message|>Done.<|end|>": says("Done."),
        "<|channel|>final to=functions.Bash<|message|>Done.": says("Done."),
        "<|channel|>commentary to=assistant<|message|>Note.": says("Note."),
    },
    broken={
        '<|channel|>commentary to=functions.Bash<|message|>{"command": "l': says(
            Call("Bash", {"command": "l"}), num_malformed=1
        ),
        f'<|channel|>commentary to=functions.Bash<|message|>{{"command": ls}}<|call|>{_H_NEXT}{_H_LS}': says(
            Call("Bash", {}), "ls}", LS, num_malformed=1
        ),
        "<|channel|>commentary to=python code<|message|>print(1)<|call|>": says("print(1)", num_malformed=1),
        "<|channel|>analysis to=python code<|message|>print(1)<|call|>": says(
            reasoning="print(1)", num_malformed=1
        ),
        f"<|channel|>final<|message|>Done.<|end|>{_H_NEXT}": says("Done." + _H_NEXT, num_malformed=1),
    },
    unreadable=(
        "<|channel|>",
        "<|start|>assistant<|channel|>comm",
        "<|channel|>final<|end|>Done.",
        "<|channel|>" + "n" * 700,
    ),
    plain=("I go to=functions.Bash", "to=nowhere", "to=" + "x" * 700, " \n "),
)

CORPORA = {
    "deepseek-v3": DEEPSEEK_V3_CORPUS,
    "dsml": DSML_CORPUS,
    "mistral": MISTRAL_CORPUS,
    "glm": GLM_CORPUS,
    "function-gemma": FUNCTION_GEMMA_CORPUS,
    "gemma3": GEMMA3_CORPUS,
    "gemma4": GEMMA4_CORPUS,
    "gemma4-thoughts": GEMMA4_THOUGHTS,
    "harmony": HARMONY_CORPUS,
}
