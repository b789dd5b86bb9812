"""The OpenAPI document is valid and says what is served."""

from __future__ import annotations

import json

import msgspec
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from offsetmgr.service.http import Api, application
from offsetmgr.service.messages import MAX_TIMEOUT_S
from offsetmgr.service.openapi import document
from offsetmgr.service.operations import OPERATIONS

DOCUMENT = json.loads(msgspec.json.encode(document(OPERATIONS, "1.2.3")))


def test_the_document_is_valid() -> None:
    """Tools that read OpenAPI 3.1 can read it."""
    OpenAPIV31SpecValidator(DOCUMENT).validate()


def test_every_operation_is_described_and_has_a_handler() -> None:
    """A route cannot be served without standing in the document."""
    described = {
        (method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item
    }
    assert described == {(each.method, each.path) for each in OPERATIONS}
    assert all(callable(getattr(Api, each.name)) for each in OPERATIONS)
    names = [each.name for each in OPERATIONS]
    assert len(names) == len(set(names))


def test_the_application_serves_the_table_and_nothing_else() -> None:
    """Starlette's routes are those of the table."""
    routes = {getattr(route, "path", "") for route in application(object.__new__(Api)).routes}
    assert routes == {each.path for each in OPERATIONS}


def _schema(name: str) -> dict[str, object]:
    return {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}


@pytest.mark.parametrize(
    ("offset", "problems"), [(0, 0), (2**63 - 1, 0), (-1, 1), (2**63, 1), ("5", 1), (1.5, 1)]
)
def test_the_schema_of_an_offset_is_the_check_of_an_offset(offset: object, problems: int) -> None:
    """Who generates a client from the document is told the same limits."""
    entry = {"topic": "t", "partition": 0, "offset": offset}
    body = {"group": "g", "offsets": [entry]}
    validator = OAS31Validator(_schema("SubmitRequest"))
    assert len(list(validator.iter_errors(body))) == problems


def test_unknown_fields_are_refused_in_the_schema_too() -> None:
    """So a typo is found before it is sent."""
    validator = OAS31Validator(_schema("SettleRequest"))
    assert validator.is_valid({"group": None, "timeout_s": MAX_TIMEOUT_S})
    assert not validator.is_valid({"grop": "g"})
    assert not validator.is_valid({"timeout_s": MAX_TIMEOUT_S + 1})
