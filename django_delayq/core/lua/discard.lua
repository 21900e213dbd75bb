#!lua flags=allow-oom
-- Delete jobs from the morgue.
-- ARGV    3 entries (lib/each) with the key of the record, or '' = the id's youngest record; 4 '1' = they came back in
--         another shard (kick.lua)
-- Returns one letter for each: d(iscarded) or n(o such record).
-- Events  none
-- include keys clock begin window marks body payload grave each seen
local came_back, discarded = ARGV[4] == '1', 0

local function discard(id, key)
  local grave = find_grave(id, key)
  if not grave then
    return 'n'
  elseif came_back then
    -- The job has not ended. An untaken completion of its burial must not be the last one here.
    each_in_grave(grave, mark_live)
    delete_record(grave)
  else
    discard_record(grave)
  end
  discarded = discarded + 1
  return 'd'
end

local letters = for_each(discard)
count('discarded', discarded)
return answer(letters)
