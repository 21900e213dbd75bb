#!lua
-- Store jobs: one entry for each job, handled by its own policies.
-- ARGV    3 entries (lib/put); 4 '1' = one `bulk` event for the chunk; 5 a tick in ms, or '': for a single entry that must be
--         stored once for each tick; 6 ms on this clock, or '': a later call changes nothing; 7 '1' = store all jobs or none
--         (none of them is durable); 8 '1' = store the reply although all jobs are refused
-- Returns one letter for each: created merged replaced ignored gated, e(xists), t(aken by another task), f(ull:
--         the shard), h (the merged job has as many payloads as it may have), p(aused), v (closing: this shard takes
--         no new ids), d (this tick or a later one was stored before), k(nown: this durable generation, or payload,
--         was stored before), l(ate: the call came too late), x (not stored because another job was refused).
--         After them 16 bytes for each m, i and g: the key of the generation that it found.
--         Before the reply of a chunk (4): 1 = it is the stored one of an earlier call, else 0.
-- Events  bulk
-- include keys clock begin window marks body due event put
local function make_rehearsal()
  -- include state payload together
end

local is_chunk = ARGV[4] == '1'
local function marked(reply, mark)
  return is_chunk and mark .. reply or reply
end

local seen = replay()
if seen then
  return marked(seen, '1')
end

-- The tick is recorded together with the job, so that only one of all processes that fire it stores a job.
local tick, not_after = tonumber(ARGV[5]), tonumber(ARGV[6])
local is_late = not_after and now_ms > not_after

local function outcome_of(e)
  if is_late then
    return 'l'
  end
  local last = tick and tonumber(redis.call('HGET', META, 'tick:' .. e.id))
  return last and last >= tick and 'd' or schedule(e)
end

local function key_of_met(e)
  local gated = e.conflict ~= IGNORE and redis.call('HGET', GATE, e.id)
  return key_of(gated and string.sub(gated, 9) or redis.call('HGET', BODY, e.id) or '')
end

local entries = { cmsgpack.unpack(ARGV[3]) }
for i, e in ipairs(entries) do
  if e[1] then -- of a usual job, for speed
    entries[i] = { id = e[1], task = e[2], body = e[3], is_delay = e[4], ms = e[5] }
  end
end
local refused_letters = ARGV[7] == '1' and not is_late and make_rehearsal()(entries)
if refused_letters then
  count('refused', #refused_letters)
  keep_clock()
  return marked(table.concat(refused_letters), '0')
end

-- The counters of letters. Idle: nothing was changed, and a repeated call gets the same letters. An old shard, which is
-- called before each new id is stored elsewhere, returns v again; a known job stays known while its sender may repeat it; a
-- late call stays late. Fired: another process was faster, which is no refusal.
local COUNTERS = { c = 'created', f = 'refused', h = 'refused', p = 'refused', v = 'idle', k = 'idle', l = 'idle', d = 'fired' }
local before, outcomes, keys = head(), {}, {}
local tally = { created = 0, changed = 0, refused = 0, idle = 0, fired = 0 }
for i, e in ipairs(entries) do
  local letter = outcome_of(e)
  local counter = COUNTERS[letter] or 'changed'
  outcomes[i], tally[counter] = letter, tally[counter] + 1
  if string.find('mig', letter) then
    keys[#keys + 1] = key_of_met(e)
  end
  if tick and (counter == 'created' or counter == 'changed') then
    redis.call('HSET', META, 'tick:' .. e.id, text(tick))
  end
end
count('refused', tally.refused)
if tally.idle + tally.refused == #entries then
  -- The reply is not stored: a full or paused queue may accept the jobs when a caller repeats the request. But if some jobs
  -- of a call were stored, its whole reply is stored, including the refusals.
  local reply = table.concat(outcomes)
  if ARGV[8] == '1' then
    remember(reply)
  elseif tally.refused > 0 then
    keep_clock()
  end
  return marked(reply, '0')
end
count('created', tally.created)
count('changed', tally.changed)
if is_chunk then
  emit_other({ outcome = 'bulk', jobs = #entries, created = tally.created })
  write_events('')
end
wake_if_earlier(before)
write_marks()
local reply = table.concat(outcomes) .. table.concat(keys)
remember(reply)
return marked(reply, '0')
