"""The queue pages of the admin: their address, and their buttons."""

from __future__ import annotations

from typing import Any

from django.test import Client

from tests.admin.support import tags_of

LIST = "/admin/django_delayq/queueentry/"


def press(client: Client, verb: str, queue: str = "orders", **said: Any) -> list[str]:
    answer = client.post(f"{LIST}{queue}/{verb}/", said, follow=True)
    assert answer.status_code == 200
    tags_of(answer.content)
    return [str(message) for message in answer.context.get("messages", ())]
