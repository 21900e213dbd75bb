-- How many calls go by between two looks at the old end of the request window.
local SWEEP_EVERY = 64
