#!lua
-- Puts jobs in: one entry for each, decided by its own policies.
-- ARGV    3 entries one after another: '<B conflict><B due policy><B score policy><B marks><d ms><Bc0 id><Bc0 task>
--           <I4c0 body without its task>'
--           conflict 0 merge 1 replace 2 ignore 3 error; due policy 0 keep 1 replace 2 earliest 3 latest
--           4 inherit;
--           score policy 0 min 1 max 2 first 3 last; marks 1 = ms is a delay, 2 = keep the retry state,
--           4 = merged: '<c16 digest><B payload policy><I4 max payloads><I4c0 payload record without arrival>' follows,
--           payload policy 0 all 1 last 2 first; 8 = the payload's score is the time now, in Unix seconds
--         4 '1' = one `bulk` event for the chunk; 5 a tick in ms, or '': for a single entry that must be put in once
--         for each tick; 6 ms on this clock, or '': a call that comes later changes nothing; 7 '1' = answer keys
-- Returns one letter for each: created merged replaced ignored gated, e(xists), t(aken by another task), f(ull: the
--         shard, or a merged job with its payloads),
--         p(aused), v (moved: a closing shard takes no new ids), d (this tick or a later one was there before),
--         k(nown: this very durable generation, or payload, was put in before), l(ate: the call came too late).
--         Behind them, if asked for, the 16 bytes of the key of the generation that each m, i and g has met.
-- Events  bulk
-- include keys clock begin sweep window settled body tasks due wake entry
local function make_policies()
  -- include state bytes payload gate durable known policies
end
-- include put

local seen = replay()
if seen then
  return seen
end

-- The tick is remembered with the job, in one move: of all who fire it one puts it in.
local tick, not_after = tonumber(ARGV[5]), tonumber(ARGV[6])
local is_late = not_after and now_ms > not_after

local function was_ticked(id)
  local last = tonumber(redis.call('HGET', META, 'tick:' .. id))
  return last and last >= tick
end

local function outcome_of(e)
  if is_late then
    return 'l'
  end
  return tick and was_ticked(e.id) and 'd' or schedule(e)
end

-- Broken bodies may end inside their keys.
local function key_of_met(e)
  local gated = e.conflict ~= IGNORE and redis.call('HGET', GATE, e.id)
  local key = key_of(gated and string.sub(gated, 9) or redis.call('HGET', BODY, e.id) or '')
  return key .. string.rep('\0', 16 - #key)
end

local before, keys = head(), {}
local frame, outcomes, at, n, created, refused, idle, fired = ARGV[3], {}, 1, 0, 0, 0, 0, 0
while at <= #frame do
  local e
  e, at = read_entry(frame, at)
  n = n + 1
  outcomes[n] = outcome_of(e)
  if outcomes[n] == 'c' then
    created = created + 1
  elseif ARGV[7] == '1' and string.find('mig', outcomes[n]) then
    keys[#keys + 1] = key_of_met(e)
  elseif string.find('vkl', outcomes[n]) then
    idle = idle + 1
  elseif outcomes[n] == 'd' then
    fired = fired + 1 -- somebody else was faster, which is no refusal
  elseif string.find('fp', outcomes[n]) then
    refused = refused + 1
  end
  if tick and refused + idle + fired == 0 then
    redis.call('HSET', META, 'tick:' .. e.id, text(tick))
  end
end
count('refused', refused)
if idle + refused == n then
  -- Not remembered, since nothing was changed. An old shard is asked before each new id goes elsewhere, and its v can only
  -- be the same again; what is known stays known while its sender may send it again, and what is late does not get earlier.
  -- What was full or paused may have room when a caller sends the same request again; but where some of a call were put
  -- in its whole reply is remembered, the refusals included.
  if refused > 0 then
    keep_clock()
  end
  return table.concat(outcomes)
end
count('created', created)
count('changed', n - created - refused - idle - fired)
if ARGV[4] == '1' then
  redis.call('XADD', EVENT, 'MAXLEN', '~', event_cap, '*', 'outcome', 'bulk', 'jobs', n, 'created', created)
end
wake_if_earlier(before)
write_marks()
local reply = table.concat(outcomes) .. table.concat(keys)
remember(reply)
return reply
