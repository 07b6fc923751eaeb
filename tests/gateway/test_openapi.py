"""The OpenAPI document says what is served, and what it allows is served without an accident."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CheckContext, not_a_server_error
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

SCHEMA = schemathesis.openapi.from_dict(openapi_document())
_ = (CheckContext,)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A whole server, with made-up tokens and a context that keeps answers short."""
    with serving(tmp_path_factory.mktemp("openapi"), "--max-model-len", "256") as server:
        yield server


def test_the_document_lists_the_routes_that_are_served_and_no_other() -> None:
    served = {
        (re.sub(r":path}", "}", route.path), method)
        for route in gateway(ScriptedReplica())._app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }

    documented = {
        (path, method.upper()) for path, item in openapi_document()["paths"].items() for method in item
    }
    assert documented == served


async def test_the_document_is_served_to_everybody() -> None:
    async with without_socket(ScriptedReplica()) as client:
        client.headers.pop("x-api-key")
        response = await client.get("/openapi.json")

    assert response.status_code == 200
    assert response.json() == openapi_document()


@SCHEMA.parametrize()
@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_the_document_allows_ends_in_a_documented_answer(
    case: schemathesis.Case, server: Serving
) -> None:
    case.call_and_validate(
        base_url=server.url,
        headers={"x-api-key": server.ready["key"]},
        checks=(
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ),
    )
