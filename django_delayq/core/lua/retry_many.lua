#!lua flags=allow-oom
-- Move the due times of waiting jobs that have failed, each only if it is still the generation that is meant.
-- ARGV    3 entries one after another: 'Bc0 id, Bc0 key'; 4 ms; 5 '1' = ms is a delay from now, 'now' = to now, but
--         never later than they are due
-- Returns one letter for each: m(oved), r(eserved now) or n(o such failed job).
-- Events  none
-- include keys clock begin sweep window body due wake each
local seen = replay()
if seen then
  return seen
end
local to_now = ARGV[5] == 'now'
local ms = tonumber(ARGV[4]) + ((to_now or ARGV[5] == '1') and now_ms or 0)

local function move(id, key)
  local body = redis.call('HGET', BODY, id)
  if not body or key_of(body) ~= key or not redis.call('ZSCORE', FAILED, id) then
    return 'n'
  end
  local due = tonumber(redis.call('ZSCORE', DUE[class_of(body)], id))
  if not due then
    return 'r'
  elseif not to_now or due > now_ms * 1000 then
    put_due(body, score_at(ms), id)
  end
  return 'm'
end

return for_each(ARGV[3], move)
