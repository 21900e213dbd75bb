"""The ``DELAYQ`` setting (:mod:`.conf`): read once, checked, frozen; each section is a dataclass.

Every Django part of the package may import it. It imports ``core`` and ``masking`` only.
"""
