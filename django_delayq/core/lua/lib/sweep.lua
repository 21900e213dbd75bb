-- Number of calls between two sweeps of the old end of the request window.
local SWEEP_EVERY = 64
