#!lua flags=allow-oom
-- Hand out due jobs, the most urgent class first, each under a lease and one fencing token.
-- ARGV    3 worker; 4 limit (at most 250); 5 ms that the lease lasts, '' = as usual; 6 '1' = the jobs count as started
--         at once (a holder without a heartbeat), '2' = also, and a job's own ttr replaces 5; 7 the only id that is
--         wanted, or ''; 8 of that one: 'e' in it = also before it is due, 'b' in it = if no job of the id is live, that
--         of its youngest morgue record, which comes back with its failures reset (kick.lua); 9 and 10 the first and the
--         last class that is served (lib/keys); 11 limits of tasks (lib/park); missing = all classes, no limits
-- Returns the batch (lib/reserve); for a retried call, the jobs that the first call handed out and that are still held,
--         with a new lease. Or v: the wanted id is not live in this closed shard.
-- Events  none
-- include keys clock begin window marks body names state due wake payload
local function make_parking(served)
  -- include park
end
local function make_revival()
  -- include unite gate grave kick
  return function(id)
    local grave = find_grave(id, '')
    local record = grave and read_record(grave)
    if record then
      bring_back(id, record, now_ms, false)
      delete_record(grave)
      write_marks()
    end
    return record ~= nil
  end
end
-- include reserve

-- Hands out one job by its id, if it waits here and is due (or wanted early).
local function reserve_one(id, early, worker)
  local body, jobs, token = redis.call('HGET', BODY, id), {}, 0
  local class = body and class_of(body)
  if class == PARKED then -- its caller wants it, whatever the limit of the task
    put_due(body, redis.call('ZSCORE', DUE[PARKED], id), id)
    body = redis.call('HGET', BODY, id)
    class = class_of(body)
  end
  local due = class and tonumber(redis.call('ZSCORE', DUE[class], id))
  if due and (early or is_due(due)) and not paused_out then
    token = new_token()
    lease_jobs(class, { id }, { due }, { body }, token, worker, jobs)
    count('reserved', 1)
  end
  return frame_of_batch(token, head(unpack(served)), jobs), token
end

served = { tonumber(ARGV[9]) or 1, tonumber(ARGV[10]) or QUARANTINE, limits = ARGV[11] or '' }
ttr_ms, is_started, prefers_own_ttr = tonumber(ARGV[5]) or lease_ms, ARGV[6] ~= '0', ARGV[6] == '2'
local seen = replay()
if seen then
  return reserve_again(tonumber(seen))
end
local batch, token
local only = ARGV[7]
if only ~= '' then
  local early = string.find(ARGV[8], 'e')
  if redis.call('HEXISTS', BODY, only) == 0 then
    if closing then
      return 'v'
    end
    early = string.find(ARGV[8], 'b') and not paused_out and make_revival()(only)
  end
  batch, token = reserve_one(only, early, ARGV[3])
else
  batch, token = reserve(tonumber(ARGV[4]), ARGV[3])
end
if token > 0 or not closing then
  -- Requests to an old shard without jobs must not delay its end (retire.lua).
  remember(text(token))
end
return batch
