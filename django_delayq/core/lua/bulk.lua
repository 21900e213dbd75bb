#!lua
-- Store one chunk of a bulk load, once during the load: the ledger of the load has its digest. So a chunk that is sent
-- again, even days later and whatever happened to its jobs, changes nothing and gets the same letters.
-- KEYS    behind those of the shard: the ledger of the load in this shard
-- ARGV    3 {kinds, which, places, ids, dues, bodies, payloads} packed by cmsgpack. A kind is a packed entry of
--         schedule.lua without what differs from job to job, and with `flags`, the first byte of the body. The others
--         are columns: which = the number of the kind, {} = all are of the first; dues in ms; bodies without flags and
--         key; payloads {digest, record}, {} of a plain job; 4 the digest that the ledger has for the chunk; 5 the load's
--         id; 6 front of the keys, which end with the place; 7 '1' = the epoch is retired, so nothing is stored; 8 ms for
--         which the ledger is kept
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
local kinds, which, places, ids, dues, bodies, payloads = unpack(cmsgpack.unpack(ARGV[3]))
for k, kind in ipairs(kinds) do
  kinds[k] = cmsgpack.unpack(kind)
end

-- Return an entry of schedule(). Job and payload have one key.
local function entry(i)
  local e, payload = kinds[which[i] or 1], payloads[i]
  local key = ARGV[6] .. struct.pack('>I4', places[i])
  e.id, e.ms, e.body = ids[i], dues[i], string.char(e.flags) .. key .. bodies[i]
  if payload and #payload > 0 then
    e.digest, e.record = payload[1], string.sub(payload[2], 1, 8) .. key .. string.sub(payload[2], 25)
  end
  return e
end

-- Store the jobs of one kind for which only the id has to be checked, because neither a rule of the shard nor a policy of
-- their own applies, by three commands for all of them: half of the time. Return their letters; no id occurs twice.
local function put_plain()
  local kind, letters, fields, members = kinds[1], {}, {}, {}
  local front, k = string.char(kind.flags) .. task_code(kind.task) .. ARGV[6], 0
  for i, old in ipairs(redis.call('HMGET', BODY, unpack(ids))) do
    seq = seq + 1
    if not old then
      fields[k + 1], fields[k + 2] = ids[i], front .. struct.pack('>I4', places[i]) .. bodies[i]
      -- As score_at(), but Redis formats the number: whole ones below 2^53 keep all digits.
      members[k + 1], members[k + 2] = dues[i] * 1000 + seq % 1000, ids[i]
      k, letters[i] = k + 2, 'c'
    end
  end
  if k > 0 then
    local class = kind.flags % 8 + 1
    redis.call('HSET', BODY, unpack(fields))
    use_class(class)
    redis.call('ZADD', DUE[class], unpack(members))
  end
  return letters
end

local before, n, first, tally = head(), #ids, seq, {}
local is_plain = #kinds == 1 and #payloads == 0 and kinds[1].flags < 64 -- without a group
local letters = is_plain and not (is_ruled or closing) and put_plain() or {}
for i = 1, n do
  if not letters[i] then
    seq = first + i - 1
    letters[i] = schedule(entry(i))
  end
  tally[letters[i]] = (tally[letters[i]] or 0) + 1
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
