-- keys: lease run core events log progress machines totals unreleased gone tomb remembered
-- The last step: every machine of the run is proved gone. From here on its keys expire; a tombstone answers for it.
local write = read_write()
local names, now, runs_s, remember_s = take_list(), take(), take(), take()
local refused = refusal(write, true)
if refused then return refused end
local held = {'held'}
for _, name in ipairs(names) do
  local text = redis.call('HGET', K.machines, name)
  local row = text and read_row(text) or nil
  if text and not (row and row.state == 'abandoned') then held[#held + 1] = name end
end
if #held > 1 then return held end
local plan = plan_rows(write)
if plan.corrupt then return {'corrupt', plan.corrupt} end
local kept = redis.call('HMGET', K.core, 'terminal_event', 'hash10')
local answer = commit(write, plan)
redis.call('HSET', K.run, 'released', '1')
redis.call('HSET', K.tomb, 'sha', redis.call('HGET', K.run, 'request_sha256') or '', 'event', kept[1] or '',
  'last_event_id', answer[3])
redis.call('EXPIRE', K.tomb, remember_s)
if kept[2] then redis.call('ZADD', K.remembered, whole(math.ceil(tonumber(now) + tonumber(remember_s))), kept[2]) end
redis.call('ZREM', K.unreleased, write.run_id)
for _, key in ipairs({K.run, K.log, K.core, K.gone}) do redis.call('EXPIRE', key, runs_s) end
return answer
