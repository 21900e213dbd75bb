#!lua flags=allow-oom
-- Move the due times of many jobs that wait, or are gated behind an attempt, each only if it is still the generation
-- that is meant.
-- ARGV    3 entries one after another: 'Bc0 id, Bc0 key'; 4 ms; 5 '1' = ms is a delay from now, '0' = a moment
-- Returns one letter for each: m(oved), r(eserved now) or n(o such generation).
-- Events  none
-- include keys clock begin sweep window body due wake gate each
local seen = replay()
if seen then
  return seen
end
local ms = tonumber(ARGV[4]) + (ARGV[5] == '1' and now_ms or 0)

local function move(id, key)
  local body, gated = redis.call('HGET', BODY, id), redis.call('HGET', GATE, id)
  if body and key_of(body) == key then
    if not redis.call('ZSCORE', DUE[class_of(body)], id) then
      return 'r'
    end
    put_due(body, score_at(ms), id)
    return 'm'
  end
  if gated then
    local _, content = read_gate(gated)
    if key_of(content) == key then
      redis.call('HSET', GATE, id, pack_gate(tonumber(score_at(ms)), content))
      return 'm'
    end
  end
  return 'n'
end

return for_each(ARGV[3], move)
