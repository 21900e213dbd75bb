#!lua flags=allow-oom
-- Record how attempts ended whose jobs were acked before they began (ack_early.lua): their events and counters.
-- ARGV    3 worker; 4 entries (lib/settle)
-- Returns one '1' or '0' for each.
-- Events  the outcome of each
-- include keys clock begin window event
local seen = replay()
if seen then
  return seen
end
local answers, late = {}, 0
for i, e in ipairs(cmsgpack.unpack(ARGV[4])) do
  local is_open = redis.call('HDEL', BEGUN, struct.pack('<d', e.token) .. e.id) == 1
  if is_open then
    count(e.outcome == 'succeeded' and 'acked' or e.outcome, 1)
  end
  if is_open or not e.expired then
    emit(e.event)
    answers[i] = '1'
  else
    answers[i], late = '0', late + 1
  end
end
count('late', late)
write_events(ARGV[3])
local reply = table.concat(answers)
remember(reply)
return reply
