#!lua flags=no-writes
-- Return the names of an id's records in the morgue, up to 250. The records themselves may be large: graves.lua reads
-- them.
-- ARGV    3 id
-- Returns each name (id \0 key), and behind it when it was buried (us)
-- Events  none
-- include keys clock begin body grave
local burials = {}
each_grave_of(ARGV[3], function(grave, buried)
  burials[#burials + 1] = grave
  burials[#burials + 1] = buried
end)
return burials
