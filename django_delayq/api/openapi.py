"""The OpenAPI document: drf-spectacular's generator with settings of our own, whatever the project's are.

A project that has a document of its own finds this API in it, too; with ``POSTPROCESSING_HOOKS`` naming
:func:`complete`, it is as full there as here. On the command line the document of this API alone is::

    manage.py spectacular --urlconf django_delayq.api.urls --custom-settings django_delayq.api.openapi.SETTINGS
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.settings import SPECTACULAR_DEFAULTS, patched_settings

from .. import __version__
from .base import ApiView, Body, authentication_classes
from .documented import (
    ANSWERS,
    DESCRIPTION,
    IDEMPOTENCY_KEEP,
    IDEMPOTENCY_KEY,
    METRICS,
    PATH_PARAMETERS,
    TAGS,
    answers_of,
    plain_paths,
)
from .examples import add_examples
from .shapes import Said, Shape

_HOOKS: Final = ("drf_spectacular.hooks.postprocess_schema_enums", "django_delayq.api.openapi.complete")
#: of drf-spectacular; what a project sets for its own document has no say in this one
SETTINGS: Final[dict[str, Any]] = {
    **{
        name: value
        for name, value in SPECTACULAR_DEFAULTS.items()
        if not name.startswith("SERVE_") and name != "DEFAULT_GENERATOR_CLASS"
    },
    "TITLE": "django_delayq",
    "DESCRIPTION": DESCRIPTION,
    "VERSION": __version__,
    "LICENSE": {"name": "BSD-3-Clause"},
    "TAGS": [{"name": name, "description": text} for name, text in TAGS.items()],
    "COMPONENT_SPLIT_REQUEST": True,
    "COMPONENT_SPLIT_PATCH": False,  # what a PATCH needs it needs
    "SCHEMA_PATH_PREFIX": "/v1",
    "APPEND_PATHS": plain_paths(),  # plain views of Django, which the generator does not see
    "POSTPROCESSING_HOOKS": list(_HOOKS),
    "SORT_OPERATION_PARAMETERS": False,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,  # each would be told to be itself
    "ENUM_NAME_OVERRIDES": {
        "JobState": ["delayed", "ready", "reserved", "morgue"],
        "CancelOutcome": ["cancelled", "stopping", "outbox"],
        "MoveOutcome": ["moved", "outbox"],
    },
}
_POST_PARAMETERS: Final = {"DelayqIdempotencyKey": IDEMPOTENCY_KEY, "DelayqIdempotencyKeep": IDEMPOTENCY_KEEP}
#: whose bodies have no member that is always needed, but one of several
_BODY_NEEDED: Final = frozenset(
    {"produce_jobs", "cancel_jobs", "run_jobs_now", "kick_jobs", "discard_jobs", "reschedule_job"}
)
_LARGEST_INT32: Final = 2**31 - 1
_NULL: Final = {"nullable": True, "enum": [None]}
_PROBLEM: Final = "#/components/schemas/Problem"
#: drf-spectacular's settings are one object for the whole process
_lock: Final = threading.Lock()


def document(root: str) -> dict[str, Any]:
    """The document of this API.

    Args:
        root: the path that the project includes it under ("/delayq/").
    """
    known = tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in authentication_classes())
    return {**_generated(known), "servers": [{"url": root.rstrip("/") or "/"}]}


@lru_cache(maxsize=8)
def _generated(authentication: tuple[str, ...]) -> dict[str, Any]:
    """Generated once for each way of recognising users, which are a part of it."""
    from .urls import urlpatterns

    with _lock, GENERATOR_STATS.silence(), patched_settings(SETTINGS):
        generator = SchemaGenerator(patterns=urlpatterns)  # type: ignore[no-untyped-call]
        made: dict[str, Any] = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
        return made


class BodyExtension(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """A body refuses members that it does not know, and the document says so."""

    target_class: Any = Body
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> Any:
        """The schema of the body."""
        schema = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        return {**_with_nulls(schema), "additionalProperties": False}


class SaidExtension(BodyExtension):  # type: ignore[no-untyped-call]
    """The same for what only the document knows."""

    target_class = Said


class ShapeExtension(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """Numbers of an answer may be large: generators make 32 bits of integers that do not say so."""

    target_class: Any = Shape
    match_subclasses = True
    priority = -1  # behind that of Said

    def map_serializer(self, auto_schema: Any, direction: Any) -> Any:
        """The schema of the answer."""
        schema = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        for member in schema.get("properties", {}).values():
            _widen(member)
        return dict(_with_nulls(schema))


def _widen(schema: dict[str, Any]) -> None:
    if schema.get("type") == "integer" and schema.get("maximum", _LARGEST_INT32 + 1) > _LARGEST_INT32:
        schema["format"] = "int64"
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            _widen(inner)


def _with_nulls(schema: Any) -> Any:
    """The same where null is really allowed: OpenAPI 3.0 knows ``nullable`` beside a ``type`` only. What is made of
    other schemas (a reference, one of several) needs null among them, else validators refuse it."""
    if isinstance(schema, list):
        return [_with_nulls(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _with_nulls(one) for name, one in schema.items()}
    if made.get("nullable") is True and "type" not in made:
        several = made.pop("allOf", None)
        if several is not None:
            made["oneOf"] = several if len(several) == 1 else [{"allOf": several}]
        if "oneOf" in made:
            made["oneOf"] = [*made["oneOf"], _NULL]
    return made


def complete(result: dict[str, Any], generator: SchemaGenerator, **context: Any) -> dict[str, Any]:
    """Adds what all operations have in common: errors, names of queues and ids, the Idempotency-Key.

    A hook of drf-spectacular. Operations of other views are left alone.
    """
    found = list(_ours(result, generator))
    if not found:
        return result
    components = result.setdefault("components", {})
    components.setdefault("responses", {}).update(
        {name: answer.component(_PROBLEM) for name, answer in ANSWERS.items()}
    )
    components.setdefault("parameters", {}).update(_POST_PARAMETERS)
    for path, method, view, operation in found:
        _name_errors(path, method, operation)
        _name_permission(view.actions[method.upper()], operation)
        _type_parameters(operation)
        add_examples(operation)
        if operation["operationId"] in _BODY_NEEDED:
            operation["requestBody"]["required"] = True
        if method == "post":
            references = [{"$ref": f"#/components/parameters/{name}"} for name in _POST_PARAMETERS]
            operation.setdefault("parameters", []).extend(references)
    _guard_metrics(result, found[0][3])
    return result


def _guard_metrics(result: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Who comes in elsewhere comes in there."""
    metrics = result["paths"].get("/metrics", {}).get("get", {})
    if metrics.get("operationId") == METRICS and "security" in other:
        result["paths"]["/metrics"] = {"get": {**metrics, "security": other["security"]}}


def _ours(result: Mapping[str, Any], generator: SchemaGenerator) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    endpoints: Any = generator.endpoints or ()  # with the pattern of the path, which DRF's own have not
    for path, _, method, callback in endpoints:
        operation = result["paths"].get(path, {}).get(method.lower())
        if operation is not None and issubclass(callback.cls, ApiView) and method in callback.cls.actions:
            yield path, method.lower(), callback.cls, operation


def _name_errors(path: str, method: str, operation: dict[str, Any]) -> None:
    """The common errors, and the right media type of those that the view names itself."""
    responses = operation.setdefault("responses", {})
    for status, response in responses.items():
        content = response.get("content", {})
        if status >= "400" and content.get("application/json", {}).get("schema", {}).get("$ref") == _PROBLEM:
            content["application/problem+json"] = content.pop("application/json")
    for status, name in answers_of(path, method):
        responses.setdefault(status, {"$ref": f"#/components/responses/{name}"})
    operation["responses"] = dict(sorted(responses.items()))


def _name_permission(action: str, operation: dict[str, Any]) -> None:
    operation["x-permission"] = action
    said = operation.get("description", "")
    operation["description"] = f"{said}\n\nPermission: `{action}`.".strip()


def _type_parameters(operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter.get("in") == "path" and parameter["name"] in PATH_PARAMETERS:
            parameter.update(PATH_PARAMETERS[parameter["name"]])
