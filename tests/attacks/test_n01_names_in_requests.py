"""Every text of a request, a file or a job that may name something, with the reason why it names
nothing of the server's that is not the sender's: a field that is new fails here until somebody has
thought about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from tests.worlds.gateway_world import opened_home, running
from thumbwheel.app.job_kinds import job_kinds
from thumbwheel.importers.types import CaseRecord, FeedbackRecord, TraceRecord
from thumbwheel.server.api.model_names import BASES, REWARD_MODELS

IN_REQUESTS: Mapping[str, str] = {
    "an agent, and the gate asks what the sender may do to it": "agent of_agent",
    "the name or id of a row, looked up in the database below that agent": """
        after against alias arm case conflicts_of continue_from dataset decision episode_id
        evaluation id inference_id item job key last-event-id metric metric_name name names of
        quarantine question queue replay resume retracts row run runs session sessionId subject
        supersedes trace traceId traces version candidate""",
    "text or a value that is stored or searched, and never looked up": """
        accept agent_type answer by column comment correction despite input instructions label
        labels note outcome output prompt ranking rater raters reason reference reviewer
        salt score slice steps stop system tag tags text thumb value verdict without_tag rating
        metadata model batch weight scale kind rated_at group content
        step body texts""",
    "one of a few words, or of a table of variants in this program and its plugins": """
        allow basis checker component deploy experiment export family format guard held_out
        ladder lora_targets method methods missed period preset primary quant role shape source
        split state status suite target verb""",
    "a time, a zone or hours": """
        as_of cron due occurred_at quiet ramp since timezone timestamp until window""",
    "a name or a password of a user; keys.add and users.add ask for `own`": "user password",
    "a model of `bases` in the home, of the hub or of a version: server/api/model_names.py": """
        base embeddings reward_model""",
    "the model at a judge's endpoint that the settings name": "judge_model",
    "the plain name of the uploaded file, or of a file of an export by its list": "file path",
    "prompts in the request itself": "canary_prompts",
    "one of the settings that app/settings_changes.py offers": "section setting",
    "the hash of the file as it was read": "if-match",
    "a channel of thumbwheel.yaml, which alone says where that sends": "channel",
    "the name of a secret of the agent; for the home's owner one of the home": "secret",
    "an upstream; a private address only where the settings list it: may_be_private": "url",
}
"""Reason -> fields of requests that may hold any text."""
IN_JOBS: Mapping[str, str] = {
    "local in the route: form and against_form are what --as and --against-as name": """
        form against_form""",
    "a path of the server's machine, which requests never offer": "rejects to",
    "what people are told: the server writes it, and to ask for such a job takes `own`": """
        notice""",
    "another row of the job itself": "parent",
    "settings of a target, local in the route": "set",
    "no option of the route: the key of another server, for imports of the command line": "key",
    "options by name, which are fields of the request unless the route lists them as local": """
        options""",
    "the id of the upload, which the server makes": "upload",
}
"""Reason -> further texts of the specs of jobs."""
IN_FILES: Mapping[str, str] = {
    "text that is stored, and never looked up outside the rows of the agent": """
        case error finish_reason input model name output parent reference
        sampling served_model session source status subject value comment metadata slices
        group""",
    "an id of a row of the same agent": "id retracts supersedes",
    "a time": "occurred_at started_at ended_at first_token_at",
    "a checker of this program's table": "checker",
    "settings of a checker, which name no server, key or module: test_case_settings.py": """
        checker_config""",
    "only the gateway writes it; a line of anybody else keeps it as a claim: test_n03": """
        model_version deployment arm assigned experiment unit probabilities reason""",
    "a keyed hash, which nobody makes without the key of the home: test_n03": "seal",
    "the server writes it over what a request says, and an import is its importer's: test_n08": """
        sender""",
}
"""Reason -> texts of the lines of traces, feedback and cases."""


def listed(*reasons: Mapping[str, str]) -> set[str]:
    """All fields of these lists."""
    return {name for allowed in reasons for names in allowed.values() for name in names.split()}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The OpenAPI document of the whole server."""
    with opened_home(tmp_path_factory.mktemp("document")) as ws, running(ws) as gateway:
        return gateway.application.api.openapi()


def resolved(schema: Any, schemas: Mapping[str, Any]) -> Any:
    """The schema that a reference stands for."""
    if "$ref" in schema:
        return resolved(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    return schema


def alternatives(schema: Any, schemas: Mapping[str, Any]) -> Iterator[Any]:
    """The schema, or those of which one or all hold; items of lists are among them."""
    schema = resolved(schema, schemas)
    parts = [part for key in ("anyOf", "oneOf", "allOf") for part in schema.get(key, ())]
    if isinstance(schema.get("items"), dict):
        parts.append(schema["items"])
    if not parts:
        yield schema
    for part in parts:
        yield from alternatives(part, schemas)


def holds_any_text(schema: Any, schemas: Mapping[str, Any]) -> bool:
    """Whether a value may be a text that nobody foresaw."""
    for part in alternatives(schema, schemas):
        is_closed = "enum" in part or "const" in part or part.get("additionalProperties") is False
        if not is_closed and part.get("type") not in ("integer", "number", "boolean", "null"):
            return True
    return False


def texts(schema: Any, schemas: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """The names of the fields of a schema, at every depth, that may hold any text."""
    for part in alternatives(schema, schemas):
        for name, field in part.get("properties", {}).items():
            if holds_any_text(field, schemas):
                yield name
            if depth < 8:
                yield from texts(field, schemas, depth + 1)


def fields_of_requests(document: dict[str, Any]) -> dict[str, str]:
    """Field -> an operation that has it."""
    schemas = document["components"]["schemas"]
    fields: dict[str, str] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = f"{method.upper()} {path}"
            for parameter in operation.get("parameters", ()):
                if holds_any_text(parameter.get("schema", {}), schemas):
                    fields.setdefault(parameter["name"], where)
            for content in operation.get("requestBody", {}).get("content", {}).values():
                for name in texts(content.get("schema", {}), schemas):
                    fields.setdefault(name, where)
    return fields


def texts_of(cls: type[BaseModel]) -> set[str]:
    """The fields of a class that may hold any text."""
    schema = cls.model_json_schema(by_alias=False)
    return set(texts(schema, schema.get("$defs", {})))


def test_every_text_of_a_request_has_a_reason(document: dict[str, Any]) -> None:
    fields = fields_of_requests(document)
    unlisted = {name: where for name, where in fields.items() if name not in listed(IN_REQUESTS)}
    assert not unlisted, "what may it name? Add the reason, or make it local"


def test_no_request_names_a_variable_a_module_a_server_or_a_folder(
    document: dict[str, Any],
) -> None:
    suspects = ("variable", "module", "host", "folder", "command", "token", "_url", "_fn")
    fields = fields_of_requests(document)
    named = {name for name in fields if any(suspect in name for suspect in suspects)}
    assert named == set()
    assert {"base", "embeddings"} == BASES and {"reward_model"} == REWARD_MODELS


def test_every_text_of_a_job_is_one_of_a_request_or_out_of_its_reach(
    document: dict[str, Any],
) -> None:
    allowed = listed(IN_REQUESTS, IN_JOBS)
    unlisted = {
        f"{kind}: {name}"
        for kind, about in job_kinds().items()
        for name in texts_of(about.spec) - allowed
    }
    assert not unlisted
    offered = fields_of_requests(document).keys()
    assert not offered & {
        "form",
        "against_form",
        "as",
        "against_as",
        "rejects",
        "options",
        "upload",
    }


@pytest.mark.parametrize("record", [TraceRecord, FeedbackRecord, CaseRecord])
def test_every_text_of_a_line_has_a_reason(record: type[BaseModel]) -> None:
    assert texts_of(record) - listed(IN_FILES, IN_REQUESTS) == set()


def test_the_lists_name_what_exists(document: dict[str, Any]) -> None:
    """A reason for a field that is gone would one day excuse another one."""
    fields = set(fields_of_requests(document))
    for about in job_kinds().values():
        fields |= texts_of(about.spec)
    for record in (TraceRecord, FeedbackRecord, CaseRecord):
        fields |= texts_of(record)
    assert listed(IN_REQUESTS, IN_JOBS, IN_FILES) - fields == set()
