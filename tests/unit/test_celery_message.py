"""A request's message is what Celery itself would have published."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest
from celery import Celery
from celery.app.task import Context
from kombu import Connection
from kombu.transport.virtual import Message

from tasks.contract.celery_message import celery_message
from tasks.contract.messages import TASK_NAME, ChatMessage, GenerateRequest, Priority

pytestmark = pytest.mark.unit

REQUEST = GenerateRequest("request-1", "m", messages=(ChatMessage("user", "Hi"),), priority=Priority.BATCH)


def test_it_has_the_headers_and_the_body_that_celery_writes():
    told = json.loads(celery_message(REQUEST, "tag", {"traceparent": "00-1-2-01"}))
    by_celery = Celery("tasks").amqp.as_task_v2(REQUEST.id, TASK_NAME, args=[REQUEST.id], kwargs={})
    same = ("lang", "task", "id", "root_id", "parent_id", "argsrepr", "kwargsrepr", "retries", "timelimit")
    assert {name: told["headers"][name] for name in same} == {name: by_celery.headers[name] for name in same}
    assert json.loads(b64decode(told["body"])) == json.loads(json.dumps(by_celery.body))
    assert told["properties"].items() >= by_celery.properties.items()
    assert told["headers"]["traceparent"] == "00-1-2-01"


def test_kombu_and_celery_read_it():
    with Connection("memory://") as connection:
        raw = json.loads(celery_message(REQUEST, "tag", {}))
        message = Message(raw, channel=connection.channel(), accept=["application/json"])
    assert message.delivery_tag == "tag"
    assert message.delivery_info == {"exchange": "", "routing_key": "inference.m"}
    assert message.properties["priority"] == 9
    args, kwargs, _ = message.decode()
    assert (args, kwargs) == ([REQUEST.id], {})
    context = Context(message.headers)
    assert (context.id, context.task, context.ignore_result) == (REQUEST.id, TASK_NAME, True)


def test_it_holds_no_text_of_the_prompt():
    assert "Hi" not in celery_message(REQUEST, "tag", {})
