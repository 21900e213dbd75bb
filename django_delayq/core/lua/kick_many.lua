#!lua
-- Bring many jobs back from the morgue, each as kick.lua does.
-- ARGV    3 entries one after another: 'Bc0 id, Bc0 key' (16 bytes, or empty = the id's youngest record); 4 ms when the
--         first is due; 5 '1' = ms is a delay from now; 6 ms between one due time and the next; 7 '1' = replace live
--         jobs
-- Returns one letter for each: k(icked), l(ive: a live job of the id prevents it), n(o such record), v (lib/kick).
--         Fewer letters than entries: the first ones had so many payloads that the others have to be sent in another
--         call.
-- Events  none
-- include keys clock begin sweep window settled body state due wake bytes payload gate grave durable kick
local MOST_PAYLOADS = 1000

local seen = replay()
if seen then
  return seen
end
local LETTERS = { kicked = 'k', live = 'l', [''] = 'n', v = 'v' }
local frame, ms, step, replace = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[6]), ARGV[7] == '1'
if ARGV[5] == '1' then
  ms = now_ms + ms
end
local before = head()
local answers, at, back = {}, 1, 0
while at <= #frame and back < MOST_PAYLOADS do
  local id, key, outcome, payloads
  id, key, at = struct.unpack('<Bc0Bc0', frame, at)
  outcome, payloads = kick(id, key, math.floor(ms), replace)
  answers[#answers + 1] = LETTERS[outcome]
  back = back + payloads
  if outcome == 'kicked' then
    ms = ms + step
  end
end
wake_if_earlier(before)
write_marks()
local reply = table.concat(answers)
remember(reply)
return reply
