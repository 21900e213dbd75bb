-- The events of a call (core/records/events.py), written as one entry; very many become several.
-- exports emit emit_other write_events
local EVENTS_OF_ENTRY = 50
local FIELD = 'events-1' -- FIELD of core/records/events.py
local events = {}

-- `event`: as packed by the worker; nothing when none is wanted.
function emit(event)
  if event then
    events[#events + 1] = event
  end
end

-- Event that is not the end of an attempt: outcome, id, task, jobs, created, extra.
function emit_other(e)
  emit(table.concat({ e.outcome, e.id or '', e.task or '', '', '', '', '', '', '', e.jobs or '', e.created or '',
    e.extra or '', '' }, '\0'))
end

-- Removes all but the newest `event_cap` events, which may lie in any number of entries: the place of every so many is
-- noted, so up to an eighth more may stay, or an entry more.
local function trim_events(before, number)
  local step = math.max(1, math.floor(event_cap / 8))
  if math.floor(before / step) == math.floor(number / step) then
    return
  end
  local kept, cut = {}, nil
  for place in string.gmatch((redis.call('HGET', META, 'event_places') or '') .. ' ' .. last_event, '%S+') do
    local ms, last = string.match(place, '^(%d+)-(%d+)$')
    if tonumber(last) <= number - event_cap then
      cut = ms .. '-' .. text(last + 1)
    else
      kept[#kept + 1] = place
    end
  end
  redis.call('HSET', META, 'event_places', table.concat(kept, ' '))
  if cut then
    redis.call('XTRIM', EVENT, 'MINID', cut)
  end
end

local function add_entry(position, worker, packed)
  local added = redis.pcall('XADD', EVENT, position, 'worker', worker, FIELD, packed)
  if type(added) == 'table' then -- something else wrote to the stream
    added = redis.call('XADD', EVENT, '*', 'worker', worker, FIELD, packed)
  end
  last_event = added
end

-- A tombstone gets none, because no consumer reads them; a cap of 0 means that no events are wanted.
function write_events(worker)
  if ended or event_cap == 0 or #events == 0 then
    return
  end
  local ms, number = string.match(last_event, '^(%d+)-(%d+)$')
  ms, number = text(math.max(now_ms, tonumber(ms))), tonumber(number)
  for first = 1, #events, EVENTS_OF_ENTRY do
    local last = math.min(first + EVENTS_OF_ENTRY - 1, #events)
    local before = number
    number = number + last - first + 1
    add_entry(ms .. '-' .. text(number), worker, table.concat(events, '', first, last))
    trim_events(before, number)
  end
  redis.call('HSET', META, 'last_event', last_event)
end
