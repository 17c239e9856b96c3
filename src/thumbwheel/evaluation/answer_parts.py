"""Answers questions of an evaluation that another host makes: a part of its job (jobs/parts.py).

This host loads the same base and adapters, from its folder or the bucket. It takes no part if its
replies would be others: on another kind of device, in another precision, or by another method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from thumbwheel.core.errors import Conflict
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.local_model import BASE, LocalModel, LocalResponder
from thumbwheel.evaluation.responder import ANSWERS, outcome_of, reply_to
from thumbwheel.evaluation.types import Ask, AskLikelihood, EvaluationConfig
from thumbwheel.jobs.part_types import PartHandler, PartOutcome
from thumbwheel.models.template_settings import TemplateSettings
from thumbwheel.models.versions import by_id


@contextmanager
def answering(ws: Workspace) -> Iterator[PartHandler]:
    """Yield what answers the questions of a part; the models stay loaded for the next one."""
    responders: list[tuple[Mapping[str, Any], LocalResponder]] = []

    def answer(spec: dict[str, Any]) -> PartOutcome:
        responder = _responder(ws, spec["recipe"], responders)
        asks = [_question(spec["kind"], fields) for fields in spec["asks"]]
        return outcome_of(responder, spec["agent_id"], asks, reply_to(responder, asks))

    yield answer


def _responder(
    ws: Workspace,
    recipe: Mapping[str, Any],
    responders: list[tuple[Mapping[str, Any], LocalResponder]],
) -> LocalResponder:
    """Return the responder of a recipe, over a model that is loaded already if that has the same
    adapters. Raises Conflict if it would give other replies here."""
    models: list[LocalModel] = []
    for loaded_recipe, responder in responders:
        if loaded_recipe == recipe:
            return responder
        if {**loaded_recipe, **_OF_VERSION} == {**recipe, **_OF_VERSION}:
            models.append(responder.local_model)
    model = models[0] if models else _model(ws, recipe)
    version_id = recipe["version"]
    version = model.base if version_id == BASE else by_id(ws, version_id)
    responder = model.responder(version)
    if responder.identity != recipe["identity"]:
        raise Conflict(
            f"the answers of {responder.name}",
            "this host would give others: its device or its precision is another one",
            "Set evaluation.dtype, or leave evaluations to hosts with the same device (jobs.needs)",
        )
    responders.append((recipe, responder))
    return responder


_OF_VERSION = {"identity": "", "version": ""}
"""What differs between recipes over one model."""


def _model(ws: Workspace, recipe: Mapping[str, Any]) -> LocalModel:
    template = recipe["template"]
    return LocalModel(
        ws,
        by_id(ws, recipe["base"]),
        [by_id(ws, version_id) for version_id in recipe["versions"]],
        EvaluationConfig.model_validate(recipe["config"]),
        None if template is None else TemplateSettings.model_validate(template),
    )


def _question(kind: str, fields: Mapping[str, Any]) -> Ask | AskLikelihood:
    """Return a question as it was before it became JSON, which has no tuples."""
    if kind == ANSWERS:
        return Ask(**fields)
    texts, finish = tuple(fields["texts"]), tuple(fields["finish"])
    return AskLikelihood(**{**fields, "texts": texts, "finish": finish})
