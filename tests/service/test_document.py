"""The OpenAPI document is valid, and says what the service does."""

from __future__ import annotations

import re
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from offsetmgr.http import front
from offsetmgr.service import openapi
from offsetmgr.service.messages import INSTANCE
from tests.service.identities import TOKENS, identities
from tests.service.support import ROOT, running

HERE = Path(__file__).parent


@pytest.mark.parametrize("secured", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_valid_requests_are_taken_and_invalid_ones_refused(
    tmp_path: Path, *, secured: bool
) -> None:
    """No 500 either.  A rule that JSON Schema cannot express is in schemathesis_hooks.py.

    In `make chaos`, with identities, there are more requests, and each limit of each value is
    tried.
    """
    given = identities(tmp_path) if secured else {}
    with running(commit__request_timeout_s=0.01, **given) as service:
        service.service.assembly.hub.close()  # event streams end at once
        with service.http() as client:
            instance = client.get("/livez").headers[INSTANCE]
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file"),
            *(str(HERE / "schemathesis.toml"), "run", f"{service.address}/openapi.json"),
            *("--header", f"{INSTANCE}: {instance}"),  # the document cannot say which one it is
            *(("--header", f"Authorization: Bearer {TOKENS['admin']}") if secured else ()),
            *("--phases", "fuzzing,coverage" if secured else "fuzzing"),
            # Without a Kafka these take their time; the code that reads their requests is the same.
            *(() if secured else ("--exclude-path-regex", "/v3/|/lag|/groups", "-n", "1")),
            "--no-color",
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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
