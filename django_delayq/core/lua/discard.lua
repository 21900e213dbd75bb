#!lua flags=allow-oom
-- Throws a job out of the morgue.
-- ARGV    3 id; 4 key (16 bytes, or '' = the youngest grave of the id)
-- Returns '1', or '0' when there is no such grave.
-- Events  none
-- include keys clock begin sweep window grave
local seen = replay()
if seen then
  return seen
end
local grave = find_grave(ARGV[3], ARGV[4])
if grave then
  fill_in(grave)
  count('discarded', 1)
end
local reply = grave and '1' or '0'
remember(reply)
return reply
