-- Hands out one job by its id, if it waits here and is due (or wanted early).
local function reserve_one(id, early, worker)
  local body, jobs, token = redis.call('HGET', BODY, id), {}, 0
  local class = body and class_of(body)
  if class == PARKED then -- its caller wants it, whatever the limit of the task
    put_due(body, redis.call('ZSCORE', DUE[PARKED], id), id)
    body = redis.call('HGET', BODY, id)
    class = class_of(body)
  end
  local due = class and tonumber(redis.call('ZSCORE', DUE[class], id))
  if due and (early or is_due(due)) and not paused_out then
    token = new_token()
    lease_jobs(class, { id }, { due }, { body }, token, worker, jobs)
    count('reserved', 1)
  end
  return frame_of_batch(token, head(unpack(served)), jobs), token
end
