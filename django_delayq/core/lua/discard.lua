#!lua flags=allow-oom
-- Delete a job from the morgue.
-- ARGV    3 id; 4 key (16 bytes, or '' = the id's youngest record); 5 '1' = it came back in another shard (adopt.lua)
-- Returns '1', or '0' when there is no such record.
-- Events  none
-- include keys clock begin sweep window settled body bytes payload grave
local seen = replay()
if seen then
  return seen
end
local grave = find_grave(ARGV[3], ARGV[4])
if grave then
  if ARGV[5] == '1' then
    -- The job has not ended. An untaken completion of its burial must not be the last one here.
    each_in_grave(grave, mark_live)
    fill_in(grave)
  else
    throw_out(grave)
  end
  count('discarded', 1)
end
write_marks()
local reply = grave and '1' or '0'
remember(reply)
return reply
