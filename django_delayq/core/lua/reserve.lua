#!lua flags=allow-oom
-- Hand out due jobs, the most urgent class first, each under a lease and one fencing token.
-- ARGV    3 worker; 4 limit (at most 250); 5 ms that the lease lasts, '' = as usual; 6 '1' = the jobs count as started
--         at once (a holder without a heartbeat), '2' = also, and a job's own ttr replaces 5; 7 the only id that is
--         wanted, or ''; 8 '1' = that one also before it is due; 9 and 10 the first and the last class that is served
--         (lib/keys); 11 limits of tasks (lib/park); missing = all classes, no limits
-- Returns the batch (lib/reserve); for a retried call, the jobs that the first call handed out and that are still held,
--         with a new lease. Or v: the wanted id is not live in this closed shard.
-- Events  none
-- include keys clock begin sweep window marks body names state due wake bytes payload
local function make_parking(served)
  -- include park
end
-- include reserve reserve_one
served = { tonumber(ARGV[9]) or 1, tonumber(ARGV[10]) or QUARANTINE, limits = ARGV[11] or '' }
ttr_ms, is_started, prefers_own_ttr = tonumber(ARGV[5]) or lease_ms, ARGV[6] ~= '0', ARGV[6] == '2'
local seen = replay()
if seen then
  return reserve_again(tonumber(seen))
end
local batch, token
if ARGV[7] ~= '' then
  if closing and redis.call('HEXISTS', BODY, ARGV[7]) == 0 then
    return 'v'
  end
  batch, token = reserve_one(ARGV[7], ARGV[8] == '1', ARGV[3])
else
  batch, token = reserve(tonumber(ARGV[4]), ARGV[3])
end
if token > 0 or not closing then
  -- Requests to an old shard without jobs must not delay its end (retire.lua).
  remember(text(token))
end
return batch
