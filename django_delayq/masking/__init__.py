"""Secrets in what people see: values whose names sound like a secret are hidden wherever jobs are shown.

Hidden are values under a sensitive name (see :mod:`.names`), the other half of a pair like ``["Authorization", …]`` or
``{"name": "token", "value": …}``, and in texts what :mod:`.texts` finds: what stands behind ``password=`` or
``--password``, passwords of URLs, bearer tokens, the values that a database quotes. Any package may import this one; it
imports nothing of ours.
"""

from .mask import MOST_CHARACTERS, Mask, Unmasked
from .names import SENSITIVE
from .restoring import MaskError
from .texts import HIDDEN

__all__ = ["HIDDEN", "MOST_CHARACTERS", "SENSITIVE", "Mask", "MaskError", "Unmasked"]
