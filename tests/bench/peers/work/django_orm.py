"""Django: `get_or_create` for each webhook, which a duplicate finds there, and the effect of a new one. A management
command's loop, on librdkafka. `python -m tests.bench.peers.work.django_orm KAFKA TOPIC DATABASE COUNT`"""

from __future__ import annotations

import asyncio
import sys
from urllib.parse import parse_qs, urlsplit

import django
import orjson
from confluent_kafka import Consumer
from django.conf import settings
from django.db import connection, models
from django.utils import timezone

from tests.bench.peers.work.told import Clock, effect

BATCH = 100


def main(kafka: str, topic: str, database: str, count: int) -> None:
    """Work off the topic."""
    url = urlsplit(database)
    host = parse_qs(url.query).get("host", [url.hostname])[0]
    backend = {"ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username, "HOST": host}
    settings.configure(DATABASES={"default": backend}, USE_TZ=True)
    django.setup()

    class Webhook(models.Model):  # type: ignore[misc]  # Django is not there where types are checked
        event_id = models.CharField(max_length=255, unique=True)
        type = models.CharField(max_length=64)
        order_id = models.CharField(max_length=255)
        body = models.JSONField()
        received_at = models.DateTimeField()

        class Meta:
            app_label = "shop"

    with connection.schema_editor() as editor:
        editor.create_model(Webhook)
    consumer = Consumer({
        "bootstrap.servers": kafka, "group.id": "django", "auto.offset.reset": "earliest", "enable.auto.commit": False,
    })  # fmt: skip
    nothing, clock, done = asyncio.new_event_loop().run_until_complete, Clock(), 0
    consumer.subscribe([topic])
    while done < count:
        messages = consumer.consume(BATCH, 0.5)
        for message in messages:
            body = orjson.loads(message.value())
            kept = {
                "type": body["type"],
                "order_id": body["data"]["object"]["order_id"],
                "body": body,
                "received_at": timezone.now(),
            }
            _, is_new = Webhook.objects.get_or_create(event_id=body["id"], defaults=kept)
            if is_new:
                nothing(effect())
        if messages:
            consumer.commit(asynchronous=False)
        done += len(messages)
    clock.tell()
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
