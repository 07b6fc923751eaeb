"""Every tool format by its name, and which of them a chat template speaks."""

from __future__ import annotations

from keepwarm.chat.parsing.deepseek_v3 import DEEPSEEK_V3
from keepwarm.chat.parsing.dsml import DSML
from keepwarm.chat.parsing.gemma import FUNCTION_GEMMA, GEMMA4
from keepwarm.chat.parsing.gemma3 import GEMMA3
from keepwarm.chat.parsing.glm import GLM
from keepwarm.chat.parsing.harmony import HARMONY
from keepwarm.chat.parsing.hermes import HERMES
from keepwarm.chat.parsing.llama3 import LLAMA3
from keepwarm.chat.parsing.mistral import MISTRAL
from keepwarm.chat.parsing.parser import ToolFormat
from keepwarm.chat.parsing.qwen3_coder import QWEN3_CODER
from keepwarm.core.errors import BadSetting

TOOL_FORMATS: tuple[ToolFormat, ...] = (
    HERMES,
    QWEN3_CODER,
    LLAMA3,
    DSML,
    DEEPSEEK_V3,
    MISTRAL,
    GLM,
    GEMMA3,
    GEMMA4,
    FUNCTION_GEMMA,
    HARMONY,
)
"""No template fits two of them."""

AUTO, NONE = "auto", "none"


def tool_format_names() -> tuple[str, ...]:
    """What `--tool-format` takes."""
    return (AUTO, NONE, *(each.name for each in TOOL_FORMATS))


def check_tool_format(name: str) -> str:
    """The name. Raises `BadSetting` with the list of names for one that is none of them."""
    if name not in tool_format_names():
        raise BadSetting(f"--tool-format {name}: must be one of {', '.join(tool_format_names())}")
    return name


def choose_tool_format(name: str, template: str) -> ToolFormat | None:
    """The format of this name; "auto" is that of the template, "none" is None. Raises `BadSetting`."""
    if check_tool_format(name) == NONE:
        return None
    if name == AUTO:
        return format_for(template)
    return next(each for each in TOOL_FORMATS if each.name == name)


def format_for(template: str) -> ToolFormat:
    """What a template speaks. One that knows no tools gets our preamble, which speaks Hermes."""
    return next((each for each in TOOL_FORMATS if each.fits(template)), HERMES)
