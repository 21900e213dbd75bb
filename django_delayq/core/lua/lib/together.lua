-- Rehearses the entries of a call that stores all of its jobs or none: works out what schedule() (lib/put, lib/policies)
-- would answer to each, behind those in front of it, and writes nothing. Durable jobs are not sent in such calls.
-- Includes: state payload.
-- id -> what an entry finds there: its task, whether it is merged, and of merged ones how many payloads wait and which
-- digests came in this call; false = nothing.
local met, places = {}, 0

-- Return the code of a task, or the name of one that has none yet.
local function task_of(e)
  return codes[e.task] or find_task_code(e.task) or e.task
end

local function find(e)
  if met[e.id] == nil then
    local old = redis.call('HGET', BODY, e.id)
    met[e.id] = old and { task = task_code_of(old), merged = is_merged(old) } or false
  end
  return met[e.id]
end

local function count_waiting(found, id)
  if not found.waiting then
    local from, behind = range_of(id)
    found.taken = redis.call('ZSCORE', LEASE, id) and read_state(redis.call('HGET', STATE, id)).taken or ''
    found.waiting = redis.call('ZLEXCOUNT', ORDER, from, behind) - #in_hand(id, found.taken)
    found.came = {}
  end
end

local function has_twin(found, e)
  local field = field_of(e.id, e.digest, in_flight(found.taken, e.digest) and '1' or '0')
  return found.came[e.digest] or not found.replaced and redis.call('HEXISTS', PAYLOAD, field) == 1
end

local function add_payload_to(found, e)
  count_waiting(found, e.id)
  if e.conflict ~= MERGE then
    found.waiting, found.came, found.replaced = 1, { [e.digest] = true }, true
  elseif not has_twin(found, e) then
    if found.waiting >= e.max_payloads and e.payload_policy == ALL then
      return 'h'
    end
    found.waiting, found.came[e.digest] = math.min(found.waiting + 1, e.max_payloads), true
  end
end

-- Return the letter of schedule(), c for an entry that needs a place in the shard, x for another one that is stored.
local function rehearse(e)
  local found = find(e)
  if closing and not found then
    return 'v'
  elseif paused_in then
    return 'p'
  elseif not found then
    places = places + 1
    met[e.id] = { task = task_of(e), merged = e.record ~= nil, waiting = 1, taken = '', came = { [e.digest or ''] = true } }
    return 'c'
  elseif found.task ~= task_of(e) or found.merged ~= (e.record ~= nil) then
    return 't'
  elseif e.conflict == IGNORE then
    return 'i'
  elseif e.conflict == ERROR then
    return 'e'
  end
  return e.record and add_payload_to(found, e) or 'x'
end

-- Return the letters if an entry would be refused; nil = all of them can be stored. If the new jobs do not
-- fit together, each of them is refused as full.
local function refused_together(entries)
  local letters, refused = {}, false
  for i, e in ipairs(entries) do
    letters[i] = rehearse(e)
    refused = refused or string.find('pteh', letters[i], 1, true)
  end
  local is_full = rules.max_length
    and redis.call('HLEN', BODY) + places > tonumber(redis.call('HGET', META, 'quota') or 0)
  for i, letter in ipairs(letters) do
    letters[i] = letter == 'c' and (is_full and 'f' or 'x') or letter
  end
  return (refused or is_full and places > 0) and letters
end

return refused_together
