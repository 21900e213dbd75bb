-- Completions: how generations ended whose end a component outside Redis waits for. A *durable* key, of a plain job or
-- of a payload, has its first bit set (job.new_key). MARKS: durable key -> '<B end><d stamp us>', end 1 done, 2
-- buried, 3 live. A completion stays until it is acknowledged (marks.lua), and no two completions of a key have the same
-- stamp.
-- Order of the writes: a script writes its completions last. If it breaks off, a generation may have ended without one:
-- a component that waits for it checks (known.lua), finds that it is unknown, and sends the job once more. With the
-- opposite order a completion might name a job that is still live: it would be forgotten outside, and lost with the
-- next loss of Redis. LIVE is different: it makes a job watched again, and so it is written first (mark_live).
-- Few functions, because every call of a script creates them again.
-- exports has_durable_payloads is_durable mark_end write_marks
local ends = {}
-- Payloads are read for their keys only where one with a durable key was ever stored.
has_durable_payloads = meta[7] == '1'

function is_durable(key)
  return #key == 16 and string.byte(key) >= 128
end

-- Registers an end for write_marks(): done or buried. Of two ends in one call the later one counts; a key that is not
-- durable is left out.
function mark_end(key, how)
  ends[key] = is_durable(key) and how or nil
end

function write_marks()
  for key, how in pairs(ends) do
    redis.call('HSET', MARKS, key, struct.pack('<Bd', how == 'done' and 1 or 2, tonumber(score_at(now_ms))))
  end
end
