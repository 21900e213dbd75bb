"""Preparation of the HTTP benchmark's site: tables, a user with a token, an empty queue. Prints the token as JSON."""

from __future__ import annotations

import json

import django
from django.core.management import call_command


def main() -> None:
    """Prepare the site, once per server."""
    django.setup()
    from django.contrib.auth.models import Permission, User
    from rest_framework.authtoken.models import Token

    from django_delayq import connections

    call_command("migrate", verbosity=0)
    user = User.objects.create_user("bench")
    user.user_permissions.set(Permission.objects.filter(codename__in=["api_produce", "api_consume"]))
    connections.broker().queue("feed")
    print(json.dumps({"token": Token.objects.create(user=user).key}))


if __name__ == "__main__":
    main()
