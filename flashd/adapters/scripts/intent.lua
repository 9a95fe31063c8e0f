-- keys: lease run core events log progress machines totals gone
-- The step that reserves a machine name before the create call, within the namespace's limits.
local write = read_write()
local name, max_machines, max_micro_usd = take(), tonumber(take()), tonumber(take())
local refused = refusal(write, false)
if refused then return refused end
local state = value_of(write.fields, 'state')
if state and TERMINAL[state] then return {'illegal', 'a terminal state needs finish'} end
if (redis.call('HGET', K.run, 'cancel_requested_at') or '') ~= '' then return {'cancelled'} end
if redis.call('HEXISTS', K.machines, name) == 1 or redis.call('HEXISTS', K.gone, name) == 1 then return {'name_used'} end
local plan = plan_rows(write, name)
if plan.corrupt then return {'corrupt', plan.corrupt} end
local totals = redis.call('HMGET', K.totals, 'count', 'micro_usd')
if (tonumber(totals[1]) or 0) + plan.count > max_machines then return {'limit:max_machines'} end
if (tonumber(totals[2]) or 0) + plan.micro_usd > max_micro_usd then return {'limit:max_usd_per_hour'} end
return commit(write, plan)
