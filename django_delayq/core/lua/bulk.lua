#!lua
-- Store one chunk of a bulk load, once during the load: the ledger of the load has its digest. So a chunk that is sent
-- again, even days later and whatever happened to its jobs, changes nothing and gets the same letters.
-- KEYS    behind those of the shard: the ledger of the load in this shard
-- ARGV    3 {kinds, which, ids, dues, bodies, payloads} packed by cmsgpack. A kind is a packed entry of schedule.lua
--         without what differs from job to job, and with `flags`, the first byte of the body. The others are columns:
--         which = the number of the kind, {} = all are of the first; dues in ms; bodies from the last 4 bytes of the key
--         on; payloads {digest, record}, {} of a plain job; 4 the digest that the ledger has for the chunk; 5 the load's
--         id; 6 front of all keys; 7 '1' = the epoch is retired, so nothing is stored; 8 ms for which the ledger is kept
-- Returns the letters of schedule.lua; one letter alone stands for as many as there are entries. A chunk of which no job
--         was accepted is not remembered, so that it can be retried.
-- Events  bulk
-- include keys clock begin window marks body due event put
local LEDGER = KEYS[#KEYS]

local stored = redis.call('HGET', LEDGER, ARGV[4])
if stored then
  return stored
end
closing = closing or ARGV[7] == '1'
local kinds, which, ids, dues, bodies, payloads = unpack(cmsgpack.unpack(ARGV[3]))
for k, kind in ipairs(kinds) do
  kinds[k] = cmsgpack.unpack(kind)
end

-- Return an entry of schedule(). Job and payload have one key.
local function entry(i)
  local e, payload = kinds[which[i] or 1], payloads[i]
  e.id, e.ms, e.body = ids[i], dues[i], string.char(e.flags) .. ARGV[6] .. bodies[i]
  if payload and #payload > 0 then
    local key = string.sub(e.body, 2, 17)
    e.digest, e.record = payload[1], string.sub(payload[2], 1, 8) .. key .. string.sub(payload[2], 25)
  end
  return e
end

-- Store the jobs of one kind for which only the id has to be checked, because neither a rule of the shard nor a policy of
-- their own applies, by three commands for all of them: half of the time. No id occurs twice.
-- Return their letters, and how many they are.
local function put_plain()
  local kind, format, letters = kinds[1], string.format, redis.call('HMGET', BODY, unpack(ids))
  -- Filled beforehand, because tables that grow take longer.
  local fields, members, k = { unpack(ids) }, { unpack(ids) }, 0
  local front = string.char(kind.flags) .. task_code(kind.task) .. ARGV[6]
  for i = 1, #ids do
    if letters[i] then
      letters[i] = false
    else
      local id = ids[i]
      fields[k + 1], fields[k + 2] = id, front .. bodies[i]
      -- As score_at(), but %d takes a fifth of the time. It writes 64 bits, of which whole numbers use 53.
      members[k + 1], members[k + 2] = format('%d', dues[i] * 1000 + (seq + i) % 1000), id
      k, letters[i] = k + 2, 'c'
    end
  end
  if k > 0 then
    local class = kind.flags % 8 + 1
    redis.call('HSET', BODY, unpack(fields, 1, k))
    use_class(class)
    redis.call('ZADD', DUE[class], unpack(members, 1, k))
  end
  return letters, k > 0 and k / 2 or nil
end

local before, n, first, letters, tally = head(), #ids, seq, {}, {}
local is_plain = #kinds == 1 and #payloads == 0 and kinds[1].flags < 64 -- without a group
if is_plain and not (is_ruled or closing) then
  letters, tally.c = put_plain()
end
for i = 1, n do
  if not letters[i] then
    seq = first + i - 1
    local letter = schedule(entry(i))
    letters[i], tally[letter] = letter, (tally[letter] or 0) + 1
  end
end
seq = first + n
local reply = tally[letters[1]] == n and letters[1] or table.concat(letters)
local refused, moved, created = (tally.f or 0) + (tally.h or 0) + (tally.p or 0), tally.v or 0, tally.c or 0
-- A chunk that is refused in part and redirected in part becomes two chunks, and a retry has to produce the same two.
if refused == n or moved == n then
  return reply
end
count('created', created)
count('changed', n - created - refused - moved)
count('refused', refused)
for letter, times in pairs(tally) do
  if not string.find('vfhp', letter) then
    redis.call('HINCRBY', LEDGER, '\0' .. letter, times)
  end
end
redis.call('HSET', LEDGER, ARGV[4], reply)
redis.call('PEXPIRE', LEDGER, ARGV[8])
if refused + moved < n then
  local task = #kinds == 1 and kinds[1].task
  emit_other({ outcome = 'bulk', task = task, jobs = n - refused - moved, created = created, extra = 'run:' .. ARGV[5] })
  write_events('')
end
wake_if_earlier(before)
write_marks()
keep_clock()
return reply
