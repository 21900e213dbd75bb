-- Hands out due jobs under one fencing token. The batch is a map that core/records/frames.py reads: token, now (us),
-- next_due (us; missing = none), quarantined (when the first one that waits for quarantine is due, if this call hands out
-- none of those), tasks (code -> name), and by their place in the batch the jobs' ids, dues (us), bodies and others: of one
-- that was never reserved its permit or false, else {state without error and `taken`, payloads}. Of lanes (lib/offers), where
-- there are any: moved (jobs that joined them), offers ({lane, number of jobs, how long their permits have to last, when these
-- end: ms} each), idle (scopes that are not blocked any more, where nothing waits), passed_over (lanes of full tasks are due).
-- exports ttr_ms is_started prefers_own_ttr serve take_token lease_jobs add_held batch reserve reserve_again
local token, holder = 0, ''
local ids, dues, bodies, others = {}, {}, {}, {}

-- reserve.lua replaces these for holders without a heartbeat: a lease time of their own or of the job, and the job counts
-- as started at once.
ttr_ms, is_started, prefers_own_ttr = lease_ms, false, false
-- The first and the last class that this call hands out, and what its caller says of limits (lib/offers).
local served, offers = { 1, QUARANTINE, lanes = '' }, nil

function serve(first, last, its_lanes)
  served = { tonumber(first) or 1, tonumber(last) or QUARANTINE, lanes = its_lanes or '' }
end

-- Return the end of a job's lease that begins now, ms. The job's own ttr is the last member of its options (`Job.ttr_ms`).
local function lease_end_of(body)
  local own
  if prefers_own_ttr and math.floor(flags_of(body) / 16) % 2 == 1 then
    local _, at = group_of(body)
    local low, high = string.byte(body, at, at + 1)
    own = high and string.match(string.sub(body, at + 2, at + 1 + low + 256 * high), '[{,]"ttr_ms":([1-9]%d*)}$')
  end
  return now_ms + (own and #own <= 12 and tonumber(own) or ttr_ms)
end

-- Return the batch, and its token.
function batch(next_due)
  return cmsgpack.pack({
    token = token, now = now_us, tasks = tasks, ids = ids, dues = dues, bodies = bodies, others = others,
    next_due = next_due or handed_out_at(head(unpack(served))),
    quarantined = served[2] < QUARANTINE and handed_out_at(head(QUARANTINE, QUARANTINE)) or nil,
    moved = offers and offers.moved, offers = offers and #offers.list > 0 and offers.list or nil, idle = offers and offers.idle,
    passed_over = offers and is_due((get_lanes().passed_over_ms or math.huge) * 1000) or nil,
  }), token
end

-- The jobs of this call go to a holder under a new token. It is a moment, so it is larger than every earlier token of this
-- shard, including lost ones. In a closing shard the clock is slow until it is two seconds behind, so that the tokens of
-- the next epoch are larger than these (docs/decisions/epochs.md explains why).
function take_token(worker)
  local CLOSING_LAG, CLOSING_PACE = 2 ^ 21, 1 / 64
  local moment = now_us
  if closing then
    local closed_us = tonumber(redis.call('HGET', META, 'closed')) or now_us
    moment = math.max(now_us - CLOSING_LAG, math.min(now_us, closed_us + math.floor((now_us - closed_us) * CLOSING_PACE)))
  end
  last_token = math.max(last_token + 1, moment)
  token, holder = last_token, worker
  return token
end

local function add_job(id, due, body, other)
  local place = #ids + 1
  ids[place], dues[place], bodies[place], others[place] = id, due, body, other
  name_task_of(body)
end

-- Adds a job whose state was stored before. `payloads`: missing = those that its attempt holds.
function add_held(id, s, body, payloads)
  payloads = payloads or taken_payloads(id, s.taken)
  s.error, s.taken = nil, nil
  add_job(id, s.due, body, { s, payloads })
end

-- Adds a job to the batch, and return its new state.
local function hand_out(id, due, body, packed, permit)
  local s, payloads = read_state(packed), {}
  s.token, s.worker = token, holder
  increment(s, 'reserves')
  if s.postponed_to ~= due then -- not postponed, or moved since by a caller
    s.due = due
  end
  s.started, s.unrenewed, s.permit = is_started or nil, is_started or nil, permit
  if is_merged(body) then
    payloads, s.taken = take_payloads(id)
  end
  packed = pack_state(s)
  add_held(id, s, body, payloads)
  return packed
end

-- Return ids of a class that were due at a moment, with their scores and bodies, as many as one reply may have.
local function due_of_class(class, limit, moment_ms)
  local BODIES_AT_ONCE, REPLY_BYTES = 25, 4 * 1024 * 1024
  local until_us = text(moment_ms * 1000 + 999)
  local due = redis.call('ZRANGEBYSCORE', DUE[class], '-inf', until_us, 'WITHSCORES', 'LIMIT', '0', limit)
  local due_ids, scores, stored, size = {}, {}, {}, 0
  for first = 1, #due, 2 * BODIES_AT_ONCE do
    local some = {}
    for i = first, math.min(first + 2 * BODIES_AT_ONCE, #due) - 1, 2 do
      due_ids[#due_ids + 1], scores[#scores + 1], some[#some + 1] = due[i], tonumber(due[i + 1]), due[i]
    end
    for _, body in ipairs(redis.call('HMGET', BODY, unpack(some))) do
      stored[#stored + 1] = body
      size = size + (body and #body or 0)
    end
    if size > REPLY_BYTES then
      break
    end
  end
  return due_ids, scores, stored
end

-- Leases jobs of a class. The lease is dated from now, when the holder can start, and ends at the same moment for the
-- whole batch, except for jobs with a ttr of their own.
function lease_jobs(class, due_ids, scores, stored, permits)
  redis.call('ZREM', DUE[class], unpack(due_ids))
  local states = redis.call('HMGET', STATE, unpack(due_ids))
  local fresh_state, deadline = fresh_states(token, holder), text(now_ms + ttr_ms)
  local leases, packed, at = {}, {}, 1
  for i, id in ipairs(due_ids) do
    local body = stored[i]
    if body then
      leases[at], leases[at + 1], packed[at] = prefers_own_ttr and text(lease_end_of(body)) or deadline, id, id
      local permit = permits and permits[i] or nil
      if states[i] or is_started or is_merged(body) then
        packed[at + 1] = hand_out(id, scores[i], body, states[i], permit)
      else
        packed[at + 1] = fresh_state(scores[i], permit)
        add_job(id, scores[i], body, permit or false)
      end
      at = at + 2
    end
  end
  if at > 1 then
    redis.call('ZADD', LEASE, unpack(leases))
    redis.call('HSET', STATE, unpack(packed))
  end
  count('lost_body', #due_ids - (at - 1) / 2)
end

local function make_offers(takes_jobs)
  -- include offers
end

local function reserve_class(class, limit, moment_ms)
  local moved
  repeat
    moved = offers and offers.moved
    local due_ids, scores, stored = due_of_class(class, limit - #ids, moment_ms or now_ms)
    if offers then
      due_ids, scores, stored = offers.without_limited(class, due_ids, scores, stored)
    end
    if #due_ids > 0 then
      lease_jobs(class, due_ids, scores, stored)
    end
  until not offers or offers.moved == moved or #ids >= limit or offers.moved >= offers.MOST
end

-- Return a number from 0 to 1 that is derived from the clock.
local function drawn()
  return (token % 65536 * 40503) % 65536 / 65536
end

-- Return the classes in the order in which this call serves them. Strict: the most urgent first. Weighted: each class
-- is first twice as often as the next one, so that none starves.
local function order_of_classes()
  local order = {}
  for class = served[1], served[2] do
    if is_used(class) then
      order[#order + 1] = class
    end
  end
  if rules.weighted and #order > 1 then
    local lot, first = drawn() * (2 ^ #order - 1), 1
    while lot >= 2 ^ (#order - first) do
      lot, first = lot - 2 ^ (#order - first), first + 1
    end
    table.insert(order, 1, table.remove(order, first))
  end
  return order
end

-- Hands out jobs that starve, the class with the oldest one first: jobs behind a more urgent class with due jobs that have
-- been due for longer than the queue allows (rule.lua). They get a quarter of what a call may hand out, and of calls for
-- fewer than four jobs every fourth on average, so that the more urgent ones do not starve in turn.
local function reserve_starving(order, limit)
  local after_ms = rules.starve_after_ms
  if not after_ms or #order < 2 then
    return
  end
  local since_ms, starving, has_due = now_ms - after_ms, {}, false
  for _, class in ipairs(order) do
    local due = head(class, class)
    if has_due and due and math.floor(due / 1000) <= since_ms then
      starving[#starving + 1] = { class = class, due = due }
    end
    has_due = has_due or is_due(due)
  end
  table.sort(starving, function(one, other)
    return one.due < other.due
  end)
  local share = math.floor(limit / 4 + drawn())
  for _, one in ipairs(starving) do
    if share > #ids then
      reserve_class(one.class, share, since_ms)
      if offers then
        offers.offer(one.class, share - #ids - offers.offered)
      end
    end
  end
end

-- Hands out jobs of a class, and offers its lanes: neither starves, so where both are due each gets half of the room.
local function serve_class(class, limit)
  if not offers then
    return reserve_class(class, limit)
  end
  local room = limit - #ids - offers.offered
  local share = served.lanes ~= '' and is_due(get_lanes().head(class, class)) and math.floor(room / 2 + drawn()) or room
  for _, most in ipairs({ share, room }) do
    local left = limit - #ids - offers.offered
    if left > 0 then
      reserve_class(class, #ids + math.min(most, left))
      offers.offer(class, limit - #ids - offers.offered)
    end
  end
end

function reserve(limit, worker)
  if is_used(LANE) or (served.lanes ~= '' and not tonumber(served.lanes)) then
    offers = make_offers(limit > 0 and not paused_out)
    offers.idle = offers.apply_blocks()
  end
  if paused_out then
    return batch()
  end
  if offers and offers.grants then
    take_token(worker)
    offers.hand_out(offers.grants)
    limit = limit + #ids
  end
  local next_due = head(unpack(served))
  if limit > #ids and is_due(next_due) then
    if token == 0 then
      take_token(worker)
    end
    local order = order_of_classes()
    reserve_starving(order, limit)
    for _, class in ipairs(order) do
      if limit > #ids then
        serve_class(class, limit)
      end
    end
  end
  count('reserved', #ids)
  next_due = head(unpack(served))
  if served[1] < QUARANTINE then -- the wake tokens are for consumers of the other classes
    local again_ms = offers and offers.wake_for_full()
    if again_ms then
      next_due = math.min(next_due or math.huge, again_ms * 1000)
    end
    if is_due(next_due) and limit > 0 and channel ~= '' then
      wake_each(20) -- a channel wakes all of them
    elseif is_due(next_due) then
      wake()
    elseif not again_ms then
      drop_wake()
    end
  end
  return batch(next_due)
end

-- Returns the same batch for a retried call: what that token still holds. The lease starts again, because its holder only
-- learns of it now.
function reserve_again(first_token)
  token = first_token
  for _, id in ipairs(token > 0 and redis.call('ZRANGE', LEASE, 0, -1) or {}) do
    local s = read_state(redis.call('HGET', STATE, id))
    local body = redis.call('HGET', BODY, id)
    if s.token == token and body then
      redis.call('ZADD', LEASE, 'XX', text(lease_end_of(body)), id)
      add_held(id, s, body)
    end
  end
  return (batch())
end
