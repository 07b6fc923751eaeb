"""Options declared once, and what becomes of wrong ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from keepwarm.cli.settings_command import number, option, refuse_unknown_variables, run_with
from keepwarm.core.errors import BadSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class OvenSettings:
    heat: Annotated[int, number(int, "--heat", help="Degrees.", least=0, most=300)] = 180
    share: Annotated[float | None, number(float, "--share", help="Of the dough.", least=0.5)] = None
    fan_speed: Annotated[str, option("--fan-speed", help="How fast.")] = "low"
    note: Annotated[str, option("--note", help="Anything.", env=False)] = ""


def bake(*arguments: str) -> OvenSettings:
    heard: list[OvenSettings] = []
    app = typer.Typer(add_completion=False)
    app.command()(run_with(OvenSettings, heard.append))
    app(args=list(arguments), standalone_mode=False)
    return heard[0]


def test_defaults_are_those_of_the_fields() -> None:
    assert bake() == OvenSettings()


def test_flags_are_parsed_to_the_types_of_the_fields() -> None:
    assert bake("--heat", "220", "--share", "0.75") == OvenSettings(heat=220, share=0.75)


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEPWARM_FAN_SPEED", "high")

    assert bake().fan_speed == "high"


def test_a_flag_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEPWARM_HEAT", "100")

    assert bake("--heat", "200").heat == 200


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--heat", "301"), "--heat 301: must be between 0 and 300"),
        (("--heat", "-1"), "--heat -1: must be between 0 and 300"),
        (("--heat", "hot"), "--heat hot: must be a whole number"),
        (("--heat", "1.5"), "--heat 1.5: must be a whole number"),
        (("--share", "0.4"), "--share 0.4: must be at least 0.5"),
        (("--share", "nan"), "--share nan: must be at least 0.5"),
        (("--share", "half"), "--share half: must be a number"),
    ],
)
def test_a_wrong_number_is_named_with_its_option_and_limit(
    arguments: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(BadSetting) as raised:
        bake(*arguments)

    assert str(raised.value) == complaint


def test_a_variable_that_is_no_setting_is_refused_with_the_closest_name() -> None:
    with pytest.raises(
        BadSetting, match="KEEPWARM_FANSPEED='high' is no setting; did you mean KEEPWARM_FAN_SPEED"
    ):
        refuse_unknown_variables(OvenSettings, {"KEEPWARM_FANSPEED": "high", "PATH": "/bin"})


def test_known_variables_and_those_of_others_are_fine() -> None:
    refuse_unknown_variables(OvenSettings, {"KEEPWARM_HEAT": "1", "HEAT": "2", "keepwarm_x": "3"})
