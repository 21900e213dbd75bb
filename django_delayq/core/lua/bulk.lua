#!lua
-- Store one chunk of a bulk load, once during the load: the ledger of the load has its digest. So a chunk that is sent
-- again, even hours later and whatever happened to its jobs, changes nothing and gets the same letters. The jobs of a
-- chunk have one shape and are sent as columns. Fresh plain jobs, the most common case, are stored together, by three
-- commands for all of them.
-- KEYS    behind those of the shard: the ledger of the load in this shard
-- ARGV    3 '<c2 code of the task><B conflict><B due policy><B score policy><B marks><B first byte of the bodies>
--         <Bc0 task><I2 n>' and n times each '<Bc0 due, ms, as text>', '<Bc0 id>', '<I4c0 body, with that code>' and,
--         of merged jobs, '<I4c0 {digest, payload policy, max payloads, record} packed by cmsgpack>'; conflict and policies
--         as in lib/put (1 = replace); marks 2 = keep the retry state, 4 = merged, 8 = the score is the time now. When
--         the code is right (the sender reads it in the shard), bodies are stored unchanged; 4 the digest that the ledger
--         has for them; 5 the load's id
-- Returns the letters of schedule.lua; one letter alone stands for as many as there are entries; X = the load is
--         closed. A chunk of which no job was accepted is not remembered, so that it can be retried.
-- Events  bulk
-- include keys clock begin window marks body due event put
local LEDGER, CLOSED = KEYS[#KEYS], '\0closed'

local stored = redis.call('HMGET', LEDGER, CLOSED, ARGV[4])
if stored[1] then
  return 'X'
elseif stored[2] then
  return stored[2]
end

local frame = ARGV[3]
local code, conflict, due_policy, score_policy, marks, flags, task, n, at = struct.unpack('<c2BBBBBBc0I2', frame)

-- Reads the next column, of n values. unpack() returns the position behind it as one more value.
local function column(format)
  local values = { struct.unpack('<' .. string.rep(format, n), frame, at) }
  at = values[n + 1]
  return values
end

local first_due = at
local dues = column('Bc0')
-- The place of arrival cannot simply be appended to a negative moment. (No length is 45, the byte of a minus.)
local is_negative = string.find(string.sub(frame, first_due, at - 1), '-', 1, true)
local ids, bodies = column('Bc0'), column('I4c0')
local extras = marks >= 4 and column('I4c0')
local flag = string.char(flags)

local function entry(i)
  local e = { conflict = conflict, due_policy = due_policy, score_policy = score_policy,
    keeps_retries = marks % 4 >= 2, score_is_now = marks >= 8,
    ms = tonumber(dues[i]), id = ids[i], task = task, body = flag .. string.sub(bodies[i], 4) }
  if extras then
    e.digest, e.payload_policy, e.max_payloads, e.record = unpack(cmsgpack.unpack(extras[i]))
  end
  return e
end

-- Store the jobs for which only the id has to be checked, because neither a rule of the shard nor a policy of their own
-- applies. Return the places of the other ones, whose numbers of arrival stay free. No id occurs twice in a chunk.
local DIGIT = { [0] = '0', '1', '2', '3', '4', '5', '6', '7', '8', '9' }
local function put_ordinary()
  local right = task_code(task)
  local prefix = code ~= right and flag .. right
  local rest, k = {}, 0
  -- Filled beforehand, because tables that grow would take longer than everything else here.
  local fields, members = { unpack(ids, 1, n) }, { unpack(ids, 1, n) }
  -- The place of arrival is counted digit by digit and appended to the moment: formatting scores would take as long as
  -- everything else.
  local low = seq % 10
  local middle = (seq - low) / 10 % 10
  local high = (seq - 10 * middle - low) / 100 % 10
  local front = DIGIT[high] .. DIGIT[middle]
  local olds = redis.call('HMGET', BODY, unpack(ids, 1, n))
  for i = 1, n do
    local id = ids[i]
    low = low + 1
    if low == 10 then
      low, middle = 0, middle + 1
      if middle == 10 then
        middle, high = 0, (high + 1) % 10
      end
      front = DIGIT[high] .. DIGIT[middle]
    end
    if olds[i] then
      rest[#rest + 1] = i
    else
      fields[k + 1], fields[k + 2] = id, prefix and prefix .. string.sub(bodies[i], 4) or bodies[i]
      members[k + 1], members[k + 2] = dues[i] .. front .. DIGIT[low], id
      k = k + 2
    end
  end
  if k > 0 then
    local class = flags % 8 + 1
    redis.call('HSET', BODY, unpack(fields, 1, k))
    use_class(class)
    redis.call('ZADD', DUE[class], unpack(members, 1, k))
  end
  return rest
end

local function all_places()
  local places = {}
  for i = 1, n do
    places[i] = i
  end
  return places
end

local before, arrived = head(), seq
local rest = (is_ruled or closing or extras or is_negative) and all_places() or put_ordinary()
local tally, reply = { c = n }, 'c'
if #rest > 0 then
  local letters = {}
  for _, i in ipairs(rest) do
    seq = arrived + i - 1
    letters[i] = schedule(entry(i))
  end
  tally = {}
  for i = 1, n do
    local letter = letters[i] or 'c'
    letters[i] = letter
    tally[letter] = (tally[letter] or 0) + 1
  end
  reply = tally[letters[1]] == n and letters[1] or table.concat(letters)
end
seq = arrived + n
local refused, moved, created = (tally.f or 0) + (tally.h or 0) + (tally.p or 0), tally.v or 0, tally.c or 0
-- A chunk that is refused in part and redirected in part becomes two chunks, and a retry has to produce the same two.
if refused == n or moved == n then
  return reply
end
count('created', created)
count('changed', n - created - refused - moved - (tally.k or 0))
count('refused', refused)
for letter, times in pairs(tally) do
  if not string.find('vfhp', letter) then
    redis.call('HINCRBY', LEDGER, '\0' .. letter, times)
  end
end
redis.call('HSET', LEDGER, ARGV[4], reply)
if refused + moved < n then
  emit_other({ outcome = 'bulk', task = task, jobs = n - refused - moved, created = created, extra = 'run:' .. ARGV[5] })
  write_events('')
end
wake_if_earlier(before)
write_marks()
keep_clock()
return reply
