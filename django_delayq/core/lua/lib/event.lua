-- The events of a call (core/events.py), written as one entry; very many become several.
-- exports emit emit_other write_events
local EVENTS_OF_ENTRY = 50
local FIELD = 'events-1' -- FIELD of core/events.py
local events = {}

-- `event`: as packed by the worker; nothing when none is wanted.
function emit(event)
  events[#events + 1] = event or nil
end

-- Event that is not the end of an attempt: outcome, id, task, jobs, created, extra.
function emit_other(e)
  emit(table.concat({ e.outcome, e.id or '', e.task or '', '', '', '', '', '', '', e.jobs or '', e.created or '',
    e.extra or '', '' }, '\0'))
end

-- Adds an entry, and removes what is older than the newest `event_cap` events: ids begin with numbers, so a number is a
-- place in the stream. Redis removes whole nodes of its radix tree, so some entries more may stay.
local function add_entry(number, worker, packed)
  local oldest = text(math.max(0, number - event_cap + 1))
  local id = text(number) .. '-' .. text(now_ms)
  local added = redis.pcall('XADD', EVENT, 'MINID', '~', oldest, id, 'worker', worker, FIELD, packed)
  if type(added) == 'table' then -- something else wrote to the stream
    added = redis.call('XADD', EVENT, '*', 'worker', worker, FIELD, packed)
  end
  last_event = added
end

-- A tombstone gets none, because its stream expires; a cap of 0 means that no events are wanted.
function write_events(worker)
  if ended or event_cap == 0 or #events == 0 then
    return
  end
  local number = tonumber(string.match(last_event, '^%d+'))
  for first = 1, #events, EVENTS_OF_ENTRY do
    local last = math.min(first + EVENTS_OF_ENTRY - 1, #events)
    number = number + last - first + 1
    add_entry(number, worker, table.concat(events, '', first, last))
  end
  redis.call('HSET', META, 'last_event', last_event)
end
