"""The ``DELAYQ`` setting: read once, checked, frozen (:mod:`.conf`); each section is a dataclass (:mod:`.sections`).

Every Django part of the package may import it. It imports ``core`` and ``masking`` only.
"""
