"""The OpenAPI document says what is served, and what it allows is served without an accident."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route

from keepwarm.gateway.openapi.document import openapi_document
from tests.cli.command import Serving, serving
from tests.gateway.doors import gateway, without_socket
from tests.gateway.scripted_replica import ScriptedReplica

DOCUMENT = openapi_document()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A whole server, with made-up tokens and a context that keeps answers short."""
    with serving(tmp_path_factory.mktemp("openapi"), "--max-model-len", "128") as server:
        yield server


def test_the_document_lists_the_routes_that_are_served_and_no_other() -> None:
    served = {
        (route.path.replace(":path}", "}"), method)
        for route in gateway(ScriptedReplica()).routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }

    documented = {(path, method.upper()) for path, item in DOCUMENT["paths"].items() for method in item}
    assert documented == served


def test_every_reference_in_the_document_resolves() -> None:
    parts = DOCUMENT["components"]

    for kind, name in re.findall(r"'#/components/(\w+)/(\w+)'", str(DOCUMENT)):
        assert name in parts[kind]
    for schema in parts["schemas"].values():
        jsonschema_rs.meta.validate({**schema, "components": parts})


async def test_the_document_is_served_to_everybody() -> None:
    async with without_socket(ScriptedReplica()) as client:
        client.headers.pop("x-api-key")
        response = await client.get("/openapi.json")

    assert response.status_code == 200
    assert response.json() == DOCUMENT


async def test_routes_that_want_a_key_say_so() -> None:
    async with without_socket(ScriptedReplica()) as client:
        client.headers.pop("x-api-key")
        refused = {
            (path, method)
            for path, item in DOCUMENT["paths"].items()
            for method in item
            if (await client.request(method, path)).status_code == 401
        }

    wanted = {
        (path, method)
        for path, item in DOCUMENT["paths"].items()
        for method, operation in item.items()
        if operation["security"]
    }
    assert refused == wanted


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """One connection for all."""
    with requests.Session() as session:
        yield session


@SCHEMA.parametrize()
@settings(max_examples=10, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_sent_ends_in_a_documented_answer(
    case: schemathesis.Case[Any], server: Serving, session: requests.Session
) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = "default"  # a made-up name would end nearly every request as a 404
        if case.meta is not None and case.meta.generation.mode.is_positive:
            case.body["stream"] = True  # bodies with a mistake in them ask for whole answers
    case.call_and_validate(
        base_url=server.url,
        session=session,
        headers={"x-api-key": server.ready["key"]},
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ],
    )
