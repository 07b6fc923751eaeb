"""What `keepwarm doctor` does and says: the lint of one template, a table, a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from keepwarm import __version__
from keepwarm.chat.lint_finding import Finding
from keepwarm.chat.lint_trial import A_DAY, TYPICAL_AGENT
from keepwarm.chat.render import ChatRenderer
from keepwarm.chat.template_lint import lint_template
from keepwarm.chat.tokenizer import load_tokenizer
from keepwarm.cli.doctor import DoctorOptions
from keepwarm.cli.embedded_model import find_embedded_model
from keepwarm.cli.output import console_beside, write_json
from keepwarm.core.errors import BadSetting
from keepwarm.measure.report import Report, encode_report

_GGUF_MAGIC = b"GGUF"
_STYLES = {"ok": "green", "info": "cyan", "warning": "yellow"}


class DoctorReport(Report, frozen=True, kw_only=True):
    """`pass` is true when no finding is a warning."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """`model` has the tokenizer; `template` is None where it has the template too."""

    model: Path
    template: Path | None

    @property
    def name(self) -> str:
        return str(self.template or self.model)


def doctor(options: DoctorOptions) -> bool:
    """Whether nothing is wrong. Raises `SetupError` for a template that cannot be tried."""
    console = console_beside(options.json)
    looked = _choose(options.template)
    report = _examine(looked)
    _print(console, report, looked)
    if options.json is not None:
        write_json(encode_report(report), options.json)
    return report.passed


def _choose(given: Path | None) -> _Looked:
    if given is None:
        return _Looked(model=find_embedded_model(), template=None)
    path = given.expanduser().absolute()
    if not path.exists():
        raise BadSetting(f"--template {given}: no such file or folder")
    if path.is_dir() or _is_gguf(path):
        return _Looked(model=path, template=None)
    return _Looked(model=find_embedded_model(), template=path)


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
    except OSError as error:
        raise BadSetting(f"--template {path}: cannot be read: {error.strerror}") from error


def _examine(looked: _Looked) -> DoctorReport:
    source = None if looked.template is None else _read(looked.template)
    tokenizer = load_tokenizer(str(looked.model), template=source)
    findings = lint_template(tokenizer, ChatRenderer(tokenizer, now=A_DAY))
    problems = tuple(finding.what for finding in findings if finding.severity == "warning")
    return DoctorReport(
        tool="doctor",
        version=__version__,
        passed=not problems,
        settings={
            "template": looked.name,
            "tokenizer": str(looked.model),
            "tokenizer_borrowed": looked.template is not None,
            "prompt_tokens": TYPICAL_AGENT.prompt_tokens,
            "new_tokens": TYPICAL_AGENT.new_tokens,
            "output_tokens": TYPICAL_AGENT.output_tokens,
            "thought_tokens": TYPICAL_AGENT.thought_tokens,
            "turns_a_question": TYPICAL_AGENT.turns_a_question,
        },
        problems=problems,
        findings=findings,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadSetting(f"--template {path}: neither a GGUF file nor a template in UTF-8") from error


def _print(console: Console, report: DoctorReport, looked: _Looked) -> None:
    console.print(f"chat template of {looked.name}", markup=False)
    if looked.template is not None:
        console.print(
            f"tokens counted with the embedded model's tokenizer ({looked.model.name}), the template's own "
            "control tokens added: another tokenizer counts a little otherwise",
            style="dim",
            markup=False,
        )
    table = Table("", "finding", "tokens a turn", "what it is, and what to do", box=None, pad_edge=False)
    for finding in report.findings:
        tokens = f"{finding.tokens_a_turn:,}" if finding.tokens_a_turn else "-"
        severity = Text(finding.severity, style=_STYLES[finding.severity])
        table.add_row(severity, finding.id, tokens, Text.assemble(finding.what, " ", (finding.fix, "italic")))
    console.print(table)
    console.print("[green]PASS[/green]" if report.passed else "[red]FAIL[/red]")
