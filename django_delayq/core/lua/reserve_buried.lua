#!lua flags=allow-oom
-- Hand out one job by its id: the live one, as reserve.lua does, or without a live one that of its youngest morgue record,
-- which comes back with its failures reset (kick.lua).
-- ARGV    3 worker; 4 unused; 5 to 8 as of reserve.lua: length of the lease, flag of the start, id, '1' = also before it
--         is due
-- Returns the batch (lib/reserve), as reserve.lua; or v: the id is not live in this closed shard.
-- Events  none
-- include keys clock begin sweep window marks body names state due wake bytes payload
local function make_revival()
  -- include unite gate grave durable kick
  return function(id)
    local grave = find_grave(id, '')
    if grave then
      bring_back(id, read_record(grave), now_ms, false)
      delete_record(grave)
      write_marks()
    end
    return grave ~= nil
  end
end
-- include reserve reserve_one
ttr_ms, is_started, prefers_own_ttr = tonumber(ARGV[5]) or lease_ms, ARGV[6] ~= '0', ARGV[6] == '2'
local worker, id, early = ARGV[3], ARGV[7], ARGV[8] == '1'
local seen = replay()
if seen then
  return reserve_again(tonumber(seen))
end

if redis.call('HEXISTS', BODY, id) == 0 then
  if closing then
    return 'v'
  end
  early = not paused_out and make_revival()(id)
end
local batch, token = reserve_one(id, early, worker)
remember(text(token))
return batch
