-- Removes waiting jobs; shared by cancel.lua and end_failed.lua. Includes: body marks payload gate event.

-- Deletes a waiting job with its content, which is marked as done. Return the number of its payloads.
local function delete_waiting(id, body)
  local payloads = 0
  leave_due(body, id)
  if is_merged(body) then
    drop_payloads(id, function(fields)
      mark_payloads(fields)
      payloads = payloads + #fields
    end)
  else
    mark_end(key_of(body), 'done')
  end
  end_run(id)
  return payloads
end

-- Reports the removal of many jobs with one event. The verb is also the name of the counter.
local function emit_bulk_event(verb, jobs)
  count(verb, jobs)
  if jobs > 0 then
    emit_other({ outcome = 'bulk', jobs = jobs, created = 0, extra = 'verb:' .. verb })
    write_events('')
  end
end
