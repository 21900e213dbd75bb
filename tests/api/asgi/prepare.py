"""Makes the tables of the database, and two users who may consume and produce; prints their tokens."""

from __future__ import annotations

import django
from django.core.management import call_command


def main() -> None:
    django.setup()
    from django.contrib.auth.models import Permission, User
    from rest_framework.authtoken.models import Token

    from django_delayq import connections

    call_command("migrate", verbosity=0)
    for name in ("feed", "wide"):
        connections.broker().queue(name)
    for name in ("program", "other"):
        user = User.objects.create_user(name)
        user.user_permissions.set(Permission.objects.filter(codename__in=["api_consume", "api_produce", "api_view"]))
        print(Token.objects.create(user=user).key)


if __name__ == "__main__":
    main()
