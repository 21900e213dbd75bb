#!lua
-- Store jobs: one entry for each job, handled by its own policies.
-- ARGV    3 entries (lib/entry); 4 '1' = one `bulk` event for the chunk; 5 a tick in ms, or '': for a single entry that
--         must be stored once for each tick; 6 ms on this clock, or '': a later call changes nothing; 7 '1' = store all
--         jobs or none (none of them is durable); 8 '1' = store the reply although all jobs are refused
-- Returns one letter for each: created merged replaced ignored gated, e(xists), t(aken by another task), f(ull:
--         the shard), h (the merged job has as many payloads as it may have), p(aused), v (closing: this shard takes
--         no new ids), d (this tick or a later one was stored before), k(nown: this durable generation, or payload,
--         was stored before), l(ate: the call came too late), x (not stored because another job was refused).
--         After them 16 bytes for each m, i and g: the key of the generation that it found.
--         Before the reply of a chunk (4): 1 = it is the stored one of an earlier call, else 0.
-- Events  bulk
-- include keys clock begin window marks body tasks due wake event entry
local function make_policies()
  -- include state payload unite gate known policies
end
-- include put
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

-- A broken body may end inside its key.
local function key_of_met(e)
  local gated = e.conflict ~= IGNORE and redis.call('HGET', GATE, e.id)
  local key = key_of(gated and string.sub(gated, 9) or redis.call('HGET', BODY, e.id) or '')
  return key .. string.rep('\0', 16 - #key)
end

local entries = read_entries(ARGV[3])
local refused_letters = ARGV[7] == '1' and not is_late and make_rehearsal()(entries)
if refused_letters then
  count('refused', #refused_letters)
  keep_clock()
  return marked(table.concat(refused_letters), '0')
end

local before, keys = head(), {}
local outcomes, created, refused, idle, fired = {}, 0, 0, 0, 0
local n = #entries
for i, e in ipairs(entries) do
  outcomes[i] = outcome_of(e)
  if outcomes[i] == 'c' then
    created = created + 1
  elseif string.find('mig', outcomes[i]) then
    keys[#keys + 1] = key_of_met(e)
  elseif string.find('vkl', outcomes[i]) then
    idle = idle + 1
  elseif outcomes[i] == 'd' then
    fired = fired + 1 -- another process was faster, which is no refusal
  elseif string.find('fhp', outcomes[i]) then
    refused = refused + 1
  end
  if tick and refused + idle + fired == 0 then
    redis.call('HSET', META, 'tick:' .. e.id, text(tick))
  end
end
count('refused', refused)
if idle + refused == n then
  -- The reply is not stored, since nothing was changed. A repeated call gets the same letters: an old shard, which is
  -- called before each new id is stored elsewhere, returns v again; a known job stays known while its sender may repeat
  -- it; a late call stays late. A full or paused queue may accept the jobs when a caller repeats the request. But if
  -- some jobs of a call were stored, its whole reply is stored, including the refusals.
  local reply = table.concat(outcomes)
  if ARGV[8] == '1' then
    remember(reply)
  elseif refused > 0 then
    keep_clock()
  end
  return marked(reply, '0')
end
count('created', created)
count('changed', n - created - refused - idle - fired)
if is_chunk then
  emit_other({ outcome = 'bulk', jobs = n, created = created })
  write_events('')
end
wake_if_earlier(before)
write_marks()
local reply = table.concat(outcomes) .. table.concat(keys)
remember(reply)
return marked(reply, '0')
