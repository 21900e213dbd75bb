-- Marks: how generations ended of whose end somebody outside Redis wants to hear. A *durable* key, of a plain job or of a
-- payload, has its first bit set (job.new_key). SETTLED: durable key -> '<B end><d stamp us>', end 1 done, 2 buried, 3 live;
-- a mark stays until it is taken (settled.lua), and no two marks of a key have the same stamp.
-- Order of the writes: a script marks last. One that broke off has then perhaps ended a generation without a mark: whoever
-- waits for it asks (known.lua), hears that nobody knows it, and sends the job once more. The other way round a mark might
-- speak of a job that lives on: it would be forgotten outside, and lost with the next loss of Redis. LIVE is the opposite,
-- because of it a job is watched again, and so it comes first (mark_live).
-- Few functions, because every verb makes them anew in every call.
local ends = {}
-- Only where a payload with a durable key was ever put in are payloads looked at for the sake of their keys.
local has_durable_payloads = meta[7] == '1'

local function is_durable(key)
  return #key == 16 and string.byte(key) >= 128
end

-- To be marked by write_marks(): done or buried. Of two ends in one call the later one counts; a key of which nobody wants
-- to hear is left out.
local function mark_end(key, how)
  if is_durable(key) then
    ends[key] = how
  end
end

local function write_marks()
  for key, how in pairs(ends) do
    redis.call('HSET', SETTLED, key, struct.pack('<Bd', how == 'done' and 1 or 2, tonumber(score_at(now_ms))))
  end
end
