"""The OpenAPI document is valid and says what is served."""

from __future__ import annotations

import re
from http import HTTPStatus
from pathlib import Path

from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from offsetmgr.http import front
from offsetmgr.service import openapi
from offsetmgr.service.messages import INSTANCE
from tests.service.support import running

with running() as _service, _service.http() as _http:
    OPERATIONS = _service.service.assembly.app.operations
    DOCUMENT = _http.get("/openapi.json").json()


def test_the_document_is_valid() -> None:
    """Tools that read OpenAPI 3.1 can read it."""
    OpenAPIV31SpecValidator(DOCUMENT).validate()


def test_the_document_knows_every_status_that_the_service_names() -> None:
    """Exceptions are the page's files, and a method that a path does not have."""
    folders = [Path(str(module.__file__)).parent for module in (openapi, front)]
    sources = "".join(each.read_text() for folder in folders for each in folder.glob("*.py"))
    named = {HTTPStatus[each].value for each in re.findall(r"HTTPStatus\.([A-Z_]+)", sources)}
    described = {
        int(status)
        for path in DOCUMENT["paths"].values()
        for operation in path.values()
        for status in operation["responses"]
    }
    assert described == named - {405}


def test_refusals_before_the_handler_are_described() -> None:
    """Status and body, for each operation; also for health, whose 503 has a body of its own."""
    refused = ({INSTANCE: "another"}, 412), ({"Host": "elsewhere"}, 421)
    with running() as service, service.http() as http:
        for operation in OPERATIONS:
            for headers, status in refused:
                answer = http.request(operation.method, operation.path, headers=headers)
                assert answer.status_code == status
                method = DOCUMENT["paths"][operation.path][operation.method.lower()]
                body = method["responses"][str(status)]["content"]["application/json"]["schema"]
                assert body == {"$ref": "#/components/schemas/ErrorAnswer"}
                OAS31Validator(_schema("ErrorAnswer")).validate(answer.json())


def _schema(name: str) -> dict[str, object]:
    return {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
