"""Masking of secrets wherever jobs are displayed.

Hidden are values under a sensitive name (see :class:`.texts.Names`), the value in a pair ``["Authorization", …]`` or
``{"name": "token", "value": …}``, and secrets in texts (see :mod:`.texts`): values after ``password=`` or
``--password``, passwords in URLs, bearer tokens, values quoted by a database. Any package may import this one; it
imports no other part of django_delayq.
"""

from .mask import MOST_CHARACTERS, Mask, MaskError, Unmasked
from .texts import HIDDEN, SENSITIVE

__all__ = ["HIDDEN", "MOST_CHARACTERS", "SENSITIVE", "Mask", "MaskError", "Unmasked"]
