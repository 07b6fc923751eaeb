"""Every option of `keepwarm serve`, once: name, default, unit and meaning. docs/settings.md shows them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from keepwarm.backend.settings import BackendSettings
from keepwarm.chat.parsing.registry import check_tool_format, tool_format_names
from keepwarm.cli.data_dir import DataDirOption
from keepwarm.cli.settings_command import number, option
from keepwarm.core.errors import BadSetting
from keepwarm.core.restarts import RestartLimits
from keepwarm.gateway.model_names import DEFAULT_ALIASES, MAX_NAME_CHARACTERS

_BACKEND_DEFAULTS: dict[str, Any] = {
    field.name: field.default for field in msgspec.structs.fields(BackendSettings)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Where to listen, what to serve, and how much of the machine it may take."""

    host: Annotated[str, option("--host", help="Address to listen on; 0.0.0.0 for every interface.")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, number(int, "--port", help="Port to listen on; 0 takes any free one.", least=0, most=65535)
    ] = 8000
    model: Annotated[
        Path | None,
        option(
            "--model",
            help="A Hugging Face folder (config.json, tokenizer.json, *.safetensors) or a GGUF file.",
            show_default="the embedded model",
        ),
    ] = None
    served_model_name: Annotated[
        str | None,
        option("--served-model-name", help="The name clients use.", show_default="the model's own"),
    ] = None
    alias: Annotated[
        list[str] | None,
        option(
            "--alias",
            help="Another name that means the model; * is any text. May be given more than once (in the "
            "variable: separated by blanks).",
            metavar="PATTERN",
            show_default="no others",
        ),
    ] = None
    default_aliases: Annotated[
        bool,
        option(
            "--default-aliases/--no-default-aliases",
            help=f"Let {', '.join(DEFAULT_ALIASES)} mean the model too: what clients ask for by themselves.",
        ),
    ] = True
    max_model_len: Annotated[
        int | None,
        number(
            int,
            "--max-model-len",
            help="Context: tokens of prompt and answer together.",
            show_default="what the model was made for",
            least=16,
        ),
    ] = None
    max_num_seqs: Annotated[
        int, number(int, "--max-num-seqs", help="Turns that are computed together.", least=1, most=4096)
    ] = _BACKEND_DEFAULTS["max_num_seqs"]
    max_num_batched_tokens: Annotated[
        int,
        number(
            int,
            "--max-num-batched-tokens",
            help="Tokens one step reads at most: a long prompt is read in pieces of this size.",
            least=1,
        ),
    ] = _BACKEND_DEFAULTS["max_num_batched_tokens"]
    block_size: Annotated[
        int, number(int, "--block-size", help="Tokens a cache block.", least=1, most=1024)
    ] = _BACKEND_DEFAULTS["block_size"]
    device_cache_gb: Annotated[
        float | None,
        number(
            float,
            "--device-cache-gb",
            help="GB (10^9 bytes) of device memory for the cache of each rank, instead of "
            "--gpu-memory-utilization.",
            show_default="by --gpu-memory-utilization",
            least=0.0,
            open_below=True,
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        float | None,
        number(
            float,
            "--gpu-memory-utilization",
            help="Share of the device memory left after loading that the cache takes; on a CPU the ranks "
            "divide it.",
            show_default="0.9 on a GPU, 0.4 on a CPU",
            least=0.0,
            most=1.0,
            open_below=True,
        ),
    ] = None
    host_cache_gb: Annotated[
        float | None,
        number(
            float,
            "--host-cache-gb",
            help="GB (10^9 bytes) of host memory for conversations that have left the device, lowered to "
            "what the machine can spare; 0: none.",
            show_default="a quarter of what the machine can spare",
            least=0.0,
        ),
    ] = None
    disk_cache_gb: Annotated[
        float,
        number(
            float,
            "--disk-cache-gb",
            help="GB (10^9 bytes) in the folder disk-cache of --data-dir, on a disk of this machine, where "
            "idle sessions are kept and a restart finds them; lowered to what is free there. 0: none.",
            least=0.0,
        ),
    ] = 0.0
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        option(
            "--dtype",
            help="Number format of weights and cache; auto: float32 on a CPU, the model's on a GPU.",
        ),
    ] = "auto"
    num_threads: Annotated[
        int | None,
        number(
            int,
            "--num-threads",
            help="CPU threads of the engine, of all ranks together.",
            show_default="all it may use",
            least=1,
        ),
    ] = None
    ranks: Annotated[
        int,
        number(
            int,
            "--ranks",
            help="Engine processes, each with weights and a cache of its own; a turn goes where its "
            "conversation is cached. On a CPU at most one a core.",
            least=1,
            most=64,
        ),
    ] = _BACKEND_DEFAULTS["ranks"]
    prefix_cache: Annotated[
        bool,
        option(
            "--prefix-cache/--no-prefix-cache", help="Keep what was read for later turns, or read each anew."
        ),
    ] = True
    conversation_memory_mb: Annotated[
        float,
        number(
            float,
            "--conversation-memory-mb",
            help="MB (10^6 bytes) of host memory for conversations that need not be gone through again when "
            "they grow, some 6 bytes a token; the least recently used fall out first. 0: each turn is "
            "rendered whole.",
            least=0.0,
        ),
    ] = _BACKEND_DEFAULTS["conversation_memory_mb"]
    tool_format: Annotated[
        str,
        option(
            "--tool-format",
            help=(
                "Markup that tool calls are read in; auto: what the chat template speaks, none: calls stay "
                f"text. One of {', '.join(tool_format_names())}."
            ),
        ),
    ] = _BACKEND_DEFAULTS["tool_format"]
    strip_attribution: Annotated[
        bool,
        option(
            "--strip-attribution/--no-strip-attribution",
            help="Take off the line by which Claude Code tells its vendor of itself: it changes with each "
            "session and compaction, and no prefix after it would be found again.",
        ),
    ] = True
    share_prefixes: Annotated[
        bool,
        option(
            "--share-prefixes/--no-share-prefixes",
            help="Let the keys of one tenant find what others of it have read; otherwise each key finds its "
            "own alone. Two tenants never share anything.",
        ),
    ] = True
    data_dir: DataDirOption = None
    max_body_mb: Annotated[
        float, number(float, "--max-body-mb", help="Largest request body, in MB (10^6 bytes).", least=0.001)
    ] = 32.0
    start_timeout_s: Annotated[
        float, number(float, "--start-timeout-s", help="Seconds the model may take to load.", least=1.0)
    ] = 600.0
    max_crashes: Annotated[
        int,
        number(
            int,
            "--max-crashes",
            help="Crashes of the backend within 10 minutes after which it is left stopped and requests are "
            "refused with the reason; until then it is started again.",
            least=1,
        ),
    ] = RestartLimits().max_losses
    drain_timeout_s: Annotated[
        float,
        number(
            float, "--drain-timeout-s", help="Seconds that running answers get to end at shutdown.", least=0.0
        ),
    ] = 10.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        option("--log-level", help="Least severe kind of line in the log, which goes to standard error."),
    ] = "info"
    engine: Annotated[
        Literal["torch", "scripted"],
        option(
            "--engine",
            help="torch computes; scripted says what --script says, or made-up tokens, without a device.",
        ),
    ] = _BACKEND_DEFAULTS["engine"]
    script: Annotated[
        Path | None,
        option(
            "--script",
            help="TOML file with the answers of --engine scripted, in the words of the model.",
            show_default="made-up tokens",
        ),
    ] = None
    script_step_ms: Annotated[
        float,
        number(
            float,
            "--script-step-ms",
            help="Milliseconds a step of --engine scripted takes; 0: as few as it can.",
            least=0.0,
        ),
    ] = _BACKEND_DEFAULTS["script_step_ms"]
    json: Annotated[
        str | None,
        option(
            "--json",
            help="Write {url, key, model, max_context_tokens, pid} there once ready; - is standard output.",
            env=False,
            show_default="no file",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raises `BadSetting` for values that are unknown, or fine alone and wrong together."""
        check_tool_format(self.tool_format)
        if self.device_cache_gb is not None and self.gpu_memory_utilization is not None:
            raise BadSetting(
                f"--device-cache-gb {self.device_cache_gb} and --gpu-memory-utilization "
                f"{self.gpu_memory_utilization} both size the cache: give one of them"
            )
        if self.disk_cache_gb and self.host_cache_gb == 0:
            raise BadSetting(
                f"--disk-cache-gb {self.disk_cache_gb:g} lies below host memory, and --host-cache-gb is 0"
            )
        if self.script is not None and self.engine != "scripted":
            raise BadSetting(f"--script {self.script} is for --engine scripted; --engine is {self.engine}")
        if self.script_step_ms and self.engine != "scripted":
            raise BadSetting(
                f"--script-step-ms {self.script_step_ms} is for --engine scripted; --engine is {self.engine}"
            )
        if self.model is not None and self.engine == "scripted" and self.script is None:
            raise BadSetting(
                f"--model {self.model} is not read by --engine scripted without --script: made-up tokens are "
                "no model's words"
            )
        name = self.served_model_name
        if name is not None and not (name.strip() and name.isprintable()):
            raise BadSetting(f"--served-model-name {name!r}: must be a name")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise BadSetting(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is less than --max-num-seqs "
                f"{self.max_num_seqs}: each running turn needs one token a step"
            )
        for alias in self.alias or ():
            _check_alias(alias)

    @property
    def aliases(self) -> tuple[str, ...]:
        """Every name beside the served one."""
        return (*(DEFAULT_ALIASES if self.default_aliases else ()), *(self.alias or ()))


def _check_alias(alias: str) -> None:
    if not alias or " " in alias or not alias.isprintable():
        raise BadSetting(f"--alias {alias!r}: must be a name, without blanks; * stands for any text")
    if len(alias) > MAX_NAME_CHARACTERS:
        raise BadSetting(
            f"--alias {alias[:20]}…: has {len(alias)} characters; at most {MAX_NAME_CHARACTERS} are allowed"
        )


def backend_settings(
    settings: ServeSettings, *, model_path: Path, model_name: str, socket_path: Path, data_dir: Path
) -> BackendSettings:
    """What the backend process is told: everything of `settings` that it knows by the same name."""
    shared = {
        field.name: getattr(settings, field.name)
        for field in msgspec.structs.fields(BackendSettings)
        if hasattr(settings, field.name) and field.name != "data_dir"
    }
    return BackendSettings(
        model_path=str(model_path),
        model_name=model_name,
        socket_path=str(socket_path),
        data_dir=str(data_dir),
        date_shown_s=time.time(),
        script_path=None if settings.script is None else str(settings.script.expanduser().absolute()),
        **shared,
    )
