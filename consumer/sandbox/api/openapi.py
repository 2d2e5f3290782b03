"""The OpenAPI document of the 20 endpoints, made from the tables that validation and routing use."""

from __future__ import annotations

from typing import Any

from consumer.sandbox.api.endpoints import ENDPOINTS, Endpoint
from consumer.sandbox.api.fields import Field
from consumer.sandbox.api.idempotency import VISIBLE
from consumer.sandbox.api.lists import DEFAULT_LIMIT, MAX_LIMIT
from consumer.sandbox.errors import PROBLEMS

# The statuses any request may meet, beside its own. 404 and the like are not shown by the spec.
_ALWAYS = ("invalid_api_credentials", "rate_limited", "validation_failed", "internal_error", "service_unavailable")
_POST_ALWAYS = ("idempotency_key_reused", "unsupported_media_type", "payload_too_large")
_PRICE_STATUSES = ("400", "404", "409", "422")


def openapi_document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Payments service v1, as the sandbox serves it",
            "version": "1",
            "description": "Record fields beyond those the specification names are assumptions of the sandbox.",
        },
        "security": [{"basic": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "schemas": _schemas(),
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"op{endpoint.number:02d}_{endpoint.run.__name__}",
        "summary": endpoint.summary,
        "parameters": _parameters(endpoint),
        "responses": _responses(endpoint),
    }
    if endpoint.fields is not None:
        operation["requestBody"] = {
            "required": bool(endpoint.fields),
            "content": {"application/json": {"schema": body_schema(endpoint.fields)}},
        }
    return operation


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = []
    if "{id}" in endpoint.path:
        parameters.append({"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}})
    if endpoint.listing:
        limit = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
        parameters.append({"name": "limit", "in": "query", "schema": limit})
        parameters.append({"name": "cursor", "in": "query", "schema": {"type": "string"}})
    for name in endpoint.query:
        schema = {"type": "string", "minLength": 1, "maxLength": 128}
        parameters.append({"name": name, "in": "query", "required": True, "schema": schema})
    if endpoint.method == "POST":
        schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": f"^{VISIBLE.pattern}$"}
        parameters.append({"name": "Idempotency-Key", "in": "header", "required": True, "schema": schema})
    return parameters


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    schema: dict[str, Any] = {"$ref": f"#/components/schemas/{endpoint.answer}"}
    if endpoint.listing:
        schema = {
            "type": "object",
            "required": ["items", "next_cursor"],
            "properties": {
                "items": {"type": "array", "items": schema, "maxItems": MAX_LIMIT},
                "next_cursor": {"type": ["string", "integer", "null"]},
            },
        }
    responses: dict[str, Any] = {
        str(status): {"description": endpoint.summary, "content": {"application/json": {"schema": schema}}}
        for status in endpoint.success
    }
    codes = [*endpoint.problems, *_ALWAYS, *(_POST_ALWAYS if endpoint.method == "POST" else ())]
    by_status: dict[str, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(str(PROBLEMS[code].status), []).append(code)
    if "price_not_found" in codes:
        for status in _PRICE_STATUSES:
            by_status.setdefault(status, []).append("price_* (assumption price_error_status)")
    for status, names in sorted(by_status.items()):
        responses[status] = _problem_response(status, names)
    return responses


def _problem_response(status: str, codes: list[str]) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": ", ".join(codes),
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/problem"}}},
    }
    if status == "401":
        response["headers"] = {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}}
    if status == "429":
        response["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}
    return response


def body_schema(fields: tuple[Field, ...]) -> dict[str, Any]:
    """The JSON schema of a request body, from its table."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [field.name for field in fields if field.required],
        "properties": {field.name: field_schema(field) for field in fields},
    }


def field_schema(field: Field) -> dict[str, Any]:
    """The JSON schema of one request field."""
    schema: dict[str, Any] = {"description": field.text} if field.text else {}
    if field.kind == "choice":
        return schema | {"type": "string", "enum": list(field.choices)}
    if field.kind == "amount":
        return schema | {"type": "string", "pattern": r"^[0-9]{1,30}(\.[0-9]{1,6})?$"}
    if field.kind == "time":
        return schema | {"type": "string", "format": "date-time"}
    if field.kind == "url":
        return schema | {"type": "string", "format": "uri", "pattern": "^https://", "maxLength": field.max_chars}
    if field.kind == "metadata":
        return schema | {
            "type": "object",
            "maxProperties": field.max_items,
            "propertyNames": {"minLength": 1, "maxLength": field.max_key_chars},
            "additionalProperties": {"type": "string", "maxLength": field.max_chars},
        }
    if field.kind == "line_items":
        item = {
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "quantity", "amount"],
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 1000},
                "quantity": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
                "amount": {"type": "string", "pattern": r"^[0-9]{1,30}(\.[0-9]{1,6})?$"},
            },
        }
        return schema | {"type": "array", "maxItems": field.max_items, "items": item}
    return schema | {"type": "string", "minLength": field.min_chars, "maxLength": field.max_chars}


def _record(required: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": required}


def _schemas() -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string"}
    maybe: dict[str, Any] = {"type": ["string", "null"]}
    flag: dict[str, Any] = {"type": "boolean"}
    order = _record({"id": text, "order_id": text, "status": text, "amount": text})
    session = _record(
        {
            "id": text,
            "url": maybe,
            "expires_at": {"type": ["string", "integer"]},
            "status": {"enum": ["OPEN", "COMPLETED", "EXPIRED", "CANCELED"]},
        }
    )
    session["properties"] = session["properties"] | {"order": {"anyOf": [order, {"type": "null"}]}}
    subscription = _record(
        {
            "id": text,
            "status": text,
            "end_reason": {"enum": [None, "PAYMENT_FAILED", "PAYER_CANCELED", "MERCHANT_CANCELED"]},
            "cancel_at_period_end": flag,
            "cancel_reason": maybe,
            "merchant_cancel_requested": flag,
        }
    )
    problem = _record({"statusCode": {"type": "integer"}, "error": text, "code": text, "message": text})
    problem["required"].append("request_id")
    problem["properties"] = problem["properties"] | {
        "request_id": {"type": "string", "pattern": "^req_"},
        "field": text,
    }
    return {
        "application": _record({"id": text, "name": text}),
        "session": session,
        "order": order,
        "payment": _record({"id": text, "status": text, "amount": text}),
        "subscription": subscription,
        "product": _record({"id": text, "name": text, "archived": flag}),
        "price": _record({"id": text, "type": {"enum": ["one_time", "recurring"]}, "amount": text, "archived": flag}),
        "event": _record({"id": {"type": "string", "pattern": "^evt_"}}),
        "test_event": {"type": "object"},
        "problem": problem,
    }
