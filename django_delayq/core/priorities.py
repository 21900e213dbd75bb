"""Priorities of other systems as the eight classes of a queue."""

from __future__ import annotations

from typing import Final

from .inputs import check_int
from .job import PRIORITIES

_U32_BITS: Final = 32


def priority_of_u32(priority: int) -> int:
    """Return the class of a beanstalkd priority, 0 (most urgent) to 4,294,967,295.

    The scale is logarithmic, because clients use the low end of the range: 0 becomes class 0, and 65,536, the default
    of many clients, becomes 4, the default here. A more urgent job never gets a later class. Jobs whose priorities are
    close share one, and run in the order of their due times: 1 … 15 are class 1, 16 … 511 class 2, up to 8,191 class 3,
    up to 262,143 class 4, up to 4,194,303 class 5, up to 134,217,727 class 6.

    Raises:
        InvalidJob: it is not such a number.
    """
    bits = check_int("priority", priority, 0, (1 << _U32_BITS) - 1).bit_length()
    return -(-bits * (PRIORITIES - 1) // _U32_BITS)
