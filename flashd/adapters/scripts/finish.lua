-- keys: lease run core events log progress machines totals active unreleased
-- The terminal step, once: the run leaves `active`, waits in `unreleased`, its live machines become `deleting`.
local write = read_write()
local release, now = take_list(), take()
local refused = refusal(write, false)
if refused then return refused end
if not TERMINAL[value_of(write.fields, 'state') or ''] or #write.events == 0 then
  return {'illegal', 'finish needs a terminal state and its event'}
end
local plan = plan_rows(write)
for _, name in ipairs(release) do plan_release(plan, name, now) end
if plan.corrupt then return {'corrupt', plan.corrupt} end
local answer = commit(write, plan)
redis.call('HSET', K.core, 'terminal_event', value_of(write.events[#write.events], 'event'))
redis.call('ZREM', K.active, write.run_id)
redis.call('ZADD', K.unreleased, now, write.run_id)
return answer
