"""One table, which the tests make themselves."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Sack(models.Model):
    name = models.CharField(max_length=200)

    class Meta:
        managed = False
        db_table = "mill_sack"
        constraints: ClassVar[list[models.BaseConstraint]] = []
