#!lua flags=allow-oom
-- Hands out due jobs, the most urgent class first, each under a lease and one fencing token.
-- ARGV    3 worker; 4 limit (at most 250)
-- Returns the batch (lib/reserve); sent again, the jobs that the first call handed out and that are still held.
-- Events  none
-- include keys clock begin sweep window body names state due wake bytes payload reserve
local seen = replay()
if seen then
  return reserve_again(tonumber(seen))
end
local batch, token = reserve(tonumber(ARGV[4]), ARGV[3])
remember(text(token))
return batch
