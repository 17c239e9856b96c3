"""Makes an endpoint of a route: its parameters are those of the command, and so is its result."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
import threading
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Query, Request, Response
from fastapi import Path as PathParameter
from pydantic import BeforeValidator, ConfigDict, Field, create_model

from thumbwheel.access.needs import needs
from thumbwheel.access.protocol import EXIT, PAGE, path_names
from thumbwheel.access.rate_limits import RateLimits
from thumbwheel.access.result import json_of, response_of, wants_page
from thumbwheel.access.route import Route
from thumbwheel.access.types import Principal
from thumbwheel.access.work_shares import in_thread_turn
from thumbwheel.app.job_kinds import job_kind
from thumbwheel.app.run_or_submit import result_of
from thumbwheel.app.served_home import Asking, ServedHome, accepted_response, ended_job
from thumbwheel.capture.uploads import Upload, renamed
from thumbwheel.core import ids, present
from thumbwheel.core.errors import Changed, Forbidden, InputError, ThumbwheelError
from thumbwheel.core.field_words import describe_fields
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs.request import JobRequest
from thumbwheel.jobs.types import Job
from thumbwheel.server.api.bodies import uploaded
from thumbwheel.server.api.invocation import Download, run, run_at_once
from thumbwheel.server.api.job_access import require_rows
from thumbwheel.server.api.model_names import model_name
from thumbwheel.server.api.parameters import NO_NUL, Parameter, Signature
from thumbwheel.server.api.request_keys import RequestKey

HERE = "here"
"""The option of long commands that is about the command line's own process."""
BODY, FILE, WAIT = "body", "file_of_request", "wait"
"""Arguments of endpoints that are no parameters of the command."""
Wait = Annotated[
    float,
    Query(ge=0, le=600, description="Seconds to wait for the result, instead of 202 at once."),
]
LONGEST_ID = 400
"""Characters of a part of a path."""


@dataclass(frozen=True)
class Waiting:
    """A request that is a job now."""

    job: Job
    respond: Callable[[Job], Response]
    """Makes the response, once the job has ended."""


def _begun(
    home: ServedHome,
    answer: present.Answer[Any] | JobRequest[Any, Any],
    respond: Callable[[present.Answer[Any]], Response],
) -> Response | Waiting:
    """Return the response to a command's answer, or the job that the request waits for."""
    if not isinstance(answer, JobRequest):
        return respond(answer)
    show = answer.show
    job = home.job_for(answer.kind, answer.spec, here=answer.here)
    if job is None:
        return respond(show(job_kind(answer.kind).handler(home.ws, answer.spec)))
    if job.has_ended:
        return respond(show(result_of(job)))
    return Waiting(job, lambda ended: respond(show(result_of(ended))))


@dataclass(frozen=True)
class Operation:
    """A route with what its command takes."""

    route: Route
    signature: Signature
    state: Operation | None = None
    """What the ETag in If-Match is of."""
    _changes: threading.Lock = field(default_factory=threading.Lock, compare=False)
    """Held from the comparison with If-Match to the end of the change."""

    @property
    def path_parameters(self) -> list[Parameter]:
        """Those that are parts of the path, in its order."""
        by_name = {parameter.name: parameter for parameter in self.signature.parameters}
        return [by_name[name] for name in path_names(self.route.path)]

    @property
    def parameters(self) -> list[Parameter]:
        """Those of the query or the body."""
        in_path = {parameter.name for parameter in self.path_parameters}
        return [
            parameter
            for parameter in self.signature.parameters
            if parameter.name not in in_path and self.is_offered(parameter)
        ]

    def is_offered(self, parameter: Parameter) -> bool:
        """Return whether a request may set the parameter: nothing that names a path on the server's
        machine, except the uploaded file."""
        if parameter.name in (*self.route.local, self.route.flag, HERE):
            return False
        return not parameter.is_path or parameter.name == self.route.upload

    @property
    def is_job(self) -> bool:
        """Whether it is a long operation, which a worker does."""
        return self.signature.is_job

    def answer(self, request: Request, values: Mapping[str, Any]) -> Response | Waiting:
        """Answer a request, or return the job that it waits for. `values` has the function's
        argument names as keys."""
        principal: Principal = request.state.principal
        ws: Workspace = replace(request.app.state.workspace, sender=principal.id)
        if self.route.by_row:
            require_rows(principal, self.route, ws, values)
        self._require_further(principal, values)
        values = self._in_own_name(principal, values)
        key = None if self.route.repeatable else RequestKey.of(request, values)
        has_workers = getattr(request.app.state, "has_workers", False)
        asking = Asking(
            principal.id,
            key.key if key else None,
            owns_home=principal.may("own", None),
            has_workers=has_workers,
        )
        values = self._safe(ws, values, key)
        as_page = wants_page(request)
        if self.route.download:
            limits: RateLimits = request.app.state.gate.limits
            limits.begin_download(principal)
            ended = partial(limits.end_download, principal)
            download = Download.below(ws.home.cache, ended)
            return self._files(ServedHome(ws, ws, asking), download, values)
        if self.route.upload:
            home = ServedHome(ws, ws, asking, request.state.upload)
            return self._of_upload(home, values, as_page=as_page)

        def respond(answer: present.Answer[Any]) -> Response:
            return response_of(answer, as_page=as_page)

        def answer(guarded: Workspace) -> Response | Waiting:
            home = ServedHome(guarded, ws, asking)
            return _begun(home, self._result(home, request, values), respond)

        if key:
            return key.answered(ws, request, answer)
        response = answer(ws)
        if isinstance(response, Response) and self.route.method == "GET" and not as_page:
            return _conditional(request, response)
        return response

    def _require_further(self, principal: Principal, values: Mapping[str, Any]) -> None:
        """Raise Forbidden if an option is set that needs a verb which the principal lacks."""
        for parameter in self.signature.parameters:
            verb = self.route.further_needs.get(parameter.name)
            is_set = values.get(parameter.argument, parameter.default) != parameter.default
            if verb is not None and is_set:
                principal.require(verb, ids.slug_of(values["agent"]))

    def _in_own_name(self, principal: Principal, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values with the user's name as the one who acts. Raises Forbidden if the
        request names somebody else."""
        if self.route.in_name_of is None or principal.kind != "user":
            return values
        by_name = {parameter.name: parameter for parameter in self.signature.parameters}
        parameter = by_name[self.route.in_name_of]
        argument, name = parameter.argument, values.get(parameter.argument)
        if name not in (None, parameter.default, principal.name):
            raise Forbidden(
                f"parameter {self.route.in_name_of!r} = {name!r}",
                f"it is {principal.name!r} who asks",
                "Act in your own name",
            )
        return {**values, argument: principal.name}

    def _result(
        self, home: ServedHome, request: Request, values: Mapping[str, Any]
    ) -> present.Answer[Any] | JobRequest[Any, Any]:
        if self.route.state is None:
            return run(home, self.signature, values)
        with self._changes:
            self._check_state(home, request, values)
            return run(home, self.signature, values)

    def _safe(
        self, ws: Workspace, values: Mapping[str, Any], key: RequestKey | None
    ) -> dict[str, Any]:
        """Return the values, with the folder that the server chooses. Raises InputError for a name
        that would be read as a path on the server's machine."""
        new = ids.derived("out", key.key) if key else ids.new("out")
        by_argument = {parameter.argument: parameter for parameter in self.signature.parameters}
        safe = {}
        for argument, value in values.items():
            safe[argument] = model_name(ws, by_argument[argument].name, value)
        for parameter in self.signature.parameters:
            if folder := self.route.folders.get(parameter.name):
                safe[parameter.argument] = ws.home.path / folder.format(new=new)
            if parameter.name == self.route.flag:
                safe[parameter.argument] = True
        return safe

    def _of_upload(
        self, home: ServedHome, values: Mapping[str, Any], *, as_page: bool
    ) -> Response | Waiting:
        """Return the response with the file name that the request gave: the server's folder is
        removed from it."""
        by_name = {parameter.name: parameter.argument for parameter in self.signature.parameters}
        folder = f"{values[by_name[str(self.route.upload)]].parent}/"

        def respond(answer: present.Answer[Any]) -> Response:
            response = response_of(answer, as_page=as_page)
            content = bytes(response.body).replace(folder.encode(), b"")
            headers = {EXIT: response.headers[EXIT]} if EXIT in response.headers else {}
            return Response(content, response.status_code, headers, response.media_type)

        try:
            return _begun(home, run(home, self.signature, values), respond)
        except ThumbwheelError as error:
            raise renamed(error, folder) from None

    def _files(self, home: ServedHome, download: Download, values: Mapping[str, Any]) -> Response:
        by_name = {parameter.name: parameter.argument for parameter in self.signature.parameters}
        target = {by_name[str(self.route.download)]: download.target}
        try:
            run(home, self.signature, {**values, **target})
            parts = [str(values[parameter.argument]) for parameter in self.path_parameters]
            return download.response(re.sub(r"[^\w.-]+", "-", "-".join(parts))[:100])
        except BaseException:
            download.remove()
            raise

    def _check_state(self, home: ServedHome, request: Request, values: Mapping[str, Any]) -> None:
        """Raise Changed if If-Match names another state than the current one."""
        wanted = request.headers.get("if-match")
        if wanted is None or wanted.strip() == "*" or self.state is None:
            return
        agent = {"agent": values["agent"]}
        current = etag(run_at_once(home, self.state.signature, agent))
        if current not in [tag.strip() for tag in wanted.split(",")]:
            raise Changed(
                f"If-Match {wanted}",
                f"it is {current} now: somebody has changed it",
                f"Read it again (GET {self.state.route.path}), and decide anew",
            )


def etag(answer: present.Answer[Any]) -> str:
    """Return the ETag of an answer."""
    return _etag(json_of(answer))


def _etag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _conditional(request: Request, response: Response) -> Response:
    """Return the response with its ETag, or 304 if the client already has that version."""
    tag = _etag(bytes(response.body))
    known_tags = [text.strip() for text in request.headers.get("if-none-match", "").split(",")]
    if tag in known_tags:
        return Response(status_code=304, headers={"etag": tag})
    response.headers["etag"] = tag
    return response


def add(routes: APIRouter, operation: Operation) -> None:
    """Add the endpoint of an operation."""
    route = operation.route
    routes.add_api_route(
        route.path,
        OperationEndpoint(operation).function(),
        methods=[route.method],
        name=route.operation,
        operation_id=route.operation,
        dependencies=[needs(route.need, by_row=route.by_row, recorded=route.recorded)],
        response_model=None,
        response_class=Response,
        summary=_summary(operation),
        description=_description(operation),
        tags=[route.command.partition(" ")[0]],
        responses=_responses(operation),
        openapi_extra=_extra(operation),
    )


@dataclass(frozen=True)
class OperationEndpoint:
    """The function of FastAPI's that answers for an operation; `arguments` are what it passes."""

    operation: Operation

    @property
    def takes_body(self) -> bool:
        """Whether parameters come as JSON in the body."""
        route = self.operation.route
        is_change = route.method in ("POST", "PUT") and route.upload is None
        return is_change and bool(self.operation.parameters)

    def answered(self, arguments: Mapping[str, Any]) -> Response | Waiting:
        """Answer a request; see Operation.answer."""
        request: Request = arguments["request"]
        values = {}
        for parameter in self.operation.path_parameters:
            values[parameter.argument] = arguments[parameter.name]
        in_query = {WAIT} if self.operation.is_job else set()
        if not self.takes_body:
            in_query |= {parameter.name for parameter in self.operation.parameters}
        _check_query(request, in_query)
        for parameter in self.operation.parameters:
            name = parameter.name
            if name == self.operation.route.upload:
                request.state.upload = arguments[FILE]
                values[parameter.argument] = arguments[FILE].path
            elif not self.takes_body:
                values[parameter.argument] = arguments[f"query_{name}"]
            elif f"field_{name}" in arguments[BODY].model_fields_set:
                values[parameter.argument] = getattr(arguments[BODY], f"field_{name}")
        return self.operation.answer(request, values)

    def function(self) -> Callable[..., Any]:
        """Return the function with the signature that FastAPI reads. Only one that may have to wait
        for a job is asynchronous: waiting occupies no thread."""

        def answer(**arguments: Any) -> Response:
            response = self.answered(arguments)
            assert isinstance(response, Response)  # noqa: S101 - only a job is waited for
            return response

        async def answer_of_job(**arguments: Any) -> Response:
            response = await in_thread_turn(self.answered, arguments)
            if isinstance(response, Response):
                return response
            state, seconds = arguments["request"].app.state, arguments[WAIT]
            if getattr(state, "waits_for_imports", False) and FILE in arguments:
                seconds = math.inf  # until then the file is on this host alone
            ended = await ended_job(arguments["request"], response.job, seconds)
            if ended is None:
                return accepted_response(response.job)
            return await in_thread_turn(response.respond, ended)

        chosen: Callable[..., Any] = answer_of_job if self.operation.is_job else answer
        chosen.__signature__ = inspect.Signature(self._parameters())  # type: ignore[attr-defined]
        return chosen

    def _parameters(self) -> list[inspect.Parameter]:
        parameters = [_keyword("request", Request)]
        for parameter in self.operation.path_parameters:
            bound = PathParameter(
                pattern=NO_NUL,
                min_length=1,
                max_length=LONGEST_ID,
                description=parameter.description,
            )
            parameters.append(_keyword(parameter.name, Annotated[str, bound]))
        if self.takes_body:
            parameters.append(_keyword(BODY, _body_type(self.operation)))
        else:
            parameters += [_query(parameter) for parameter in self.operation.parameters]
        if self.operation.route.upload is not None:
            file_type = Annotated[Upload, Depends(uploaded(self.operation.route.upload))]
            parameters.append(_keyword(FILE, file_type))
        if self.operation.is_job:
            parameters.append(_keyword(WAIT, Wait, 0.0))
        return parameters


def _keyword(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _query(parameter: Parameter) -> inspect.Parameter:
    about = Query(alias=parameter.name, description=parameter.description)
    default = inspect.Parameter.empty if parameter.required else parameter.default
    kind: Any = parameter.kind
    return _keyword(f"query_{parameter.name}", Annotated[kind, about], default)


def _check_query(request: Request, allowed: Collection[str]) -> None:
    for name in request.query_params:
        if name not in allowed:
            listed = ", ".join(sorted(allowed)) or "none"
            raise InputError(
                f"parameter {name!r}", "there is none of that name", f"Known: {listed}"
            )


def _json_type(kind: Any) -> Any:
    """Return the type for a JSON body: unlike in a query, `1` and `"true"` are not accepted as a
    bool."""
    parts = {kind, *typing.get_args(kind)}
    if bool in parts:
        return Annotated[kind, BeforeValidator(_truth)]
    return kind


def _truth(value: object) -> object:
    if value is not None and not isinstance(value, bool):
        raise ValueError("true or false is wanted")
    return value


def _body_type(operation: Operation) -> Any:
    """Return the class of the body. Its fields are prefixed, because pydantic has attributes such
    as `json`."""
    fields: dict[str, Any] = {}
    for parameter in operation.parameters:
        about = Field(
            default=... if parameter.required else parameter.default,
            alias=parameter.name,
            description=parameter.description,
        )
        fields[f"field_{parameter.name}"] = (_json_type(parameter.kind), about)
    model = create_model(
        f"{operation.route.operation}.body",
        __config__=ConfigDict(extra="forbid", allow_inf_nan=False),
        **fields,
    )
    in_path = {parameter.name for parameter in operation.path_parameters}
    example = {key: value for key, value in operation.route.example.items() if key not in in_path}
    about_body = Body(examples=[example]) if example else Body()
    if all(not parameter.required for parameter in operation.parameters):
        return Annotated[model, Body(default_factory=model)]
    return Annotated[model, about_body]


def _summary(operation: Operation) -> str:
    return _paragraphs(operation)[0]


def _description(operation: Operation) -> str:
    flag = f" --{operation.route.flag}" if operation.route.flag else ""
    return f"`thumbwheel {operation.route.command}{flag}`\n\n" + "\n\n".join(
        _paragraphs(operation)[1:]
    )


def _paragraphs(operation: Operation) -> list[str]:
    text = inspect.getdoc(operation.signature.function) or operation.route.command
    return [" ".join(part.split()) for part in text.split("\n\n")]


def _responses(operation: Operation) -> dict[int | str, dict[str, Any]]:
    route = operation.route
    if route.download:
        binary = {"schema": {"type": "string", "format": "binary"}}
        content = {"application/x-tar": binary, "text/html": binary}
    else:
        page = {"schema": {"type": "object"}}
        content = {PAGE: page}
    description = f"What `thumbwheel {route.command} --json` prints."
    responses: dict[int | str, dict[str, Any]] = {
        200: {"description": description, "content": content}
    }
    if not route.download:
        describe_fields(operation.signature.answer_type)
        responses[200]["model"] = operation.signature.answer_type
    if operation.is_job:
        description = "It is a job: see Location. The same request with the same Idempotency-Key, "
        description += "once it has ended, gives its result."
        responses[202] = {"description": description, "model": Job}
    if route.method == "GET":
        responses[304] = {"description": "It is as If-None-Match says."}
    return responses


def _extra(operation: Operation) -> dict[str, Any]:
    route = operation.route
    described = {
        "command": route.command,
        "flag": route.flag,
        "upload": route.upload,
        "download": route.download,
        "gives": dict(route.gives),
    }
    extra: dict[str, Any] = {
        "x-thumbwheel": {key: value for key, value in described.items() if value}
    }
    if route.upload:
        binary = {"schema": {"type": "string", "format": "binary"}}
        extra["requestBody"] = {
            "required": True,
            "content": {"application/octet-stream": binary},
        }
    return extra
