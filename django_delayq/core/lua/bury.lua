#!lua flags=allow-oom
-- Move jobs that are no longer retried into the morgue, and make the content that is gated behind them live. Of a
-- merged job it may be the first payload only: then the rest of its attempt is retried as a fresh job.
-- ARGV    3 worker; 4 entries (lib/settle)
-- Returns one '1' or '0' (the lease was lost) for each.
-- Events  buried, exhausted, poison, undecodable ...; cancelled
-- include keys clock begin window marks body state due wake payload unite gate event run settle grave
local seen = replay()
if seen then
  return seen
end

-- Buries only what this attempt held: payloads that arrived since are gated content and stay live.
local function bury_run(e, s, body)
  bury(e.id, body, s, e, is_merged(body) and taken_payloads(e.id, s.taken) or nil)
  finish_run(e.id, s.taken, e.gated)
end

-- The record has the payload's own key, and so has the job that is made of it when it is kicked.
local function bury_first_payload(e, s, body)
  local first, rest = string.sub(s.taken, 1, TAKEN), string.sub(s.taken, TAKEN + 1)
  local _, fields = in_hand(e.id, first)
  local value = redis.call('HGET', PAYLOAD, fields[1])
  if value then
    body = with_key(body, key_of_payload(value))
  end
  bury(e.id, body, s, e, taken_payloads(e.id, first))
  finish_payloads(e.id, first, e.gated)
  return_payloads(e.id, rest, tostring(e.score_policy), e.gated)
end

return settle_all(ARGV[4], function(e, s)
  if e.outcome == 'poison' then
    increment(s, 'crashes')
  end
  if e.outcome ~= 'undecodable' then
    increment(s, 'failures')
  end
  local body = redis.call('HGET', BODY, e.id) or ''
  if e.oldest and #s.taken >= TAKEN then
    bury_first_payload(e, s, body)
    if #s.taken > TAKEN and has_payloads(e.id) then
      put_rest(e.id, body, e.gated)
    else
      end_run(e.id, e.gated)
    end
  else
    bury_run(e, s, body)
  end
  emit(e.event)
  return 'buried'
end)
