-- keys: lease run core events log progress machines totals
-- A step of a run that has not ended; `release` names the machines of an attempt that did (requeue).
local write = read_write()
local release, now = take_list(), take()
local refused = refusal(write, false)
if refused then return refused end
local state = value_of(write.fields, 'state')
if state and TERMINAL[state] then return {'illegal', 'a terminal state needs finish'} end
local plan = plan_rows(write)
for _, name in ipairs(release) do plan_release(plan, name, now) end
if plan.corrupt then return {'corrupt', plan.corrupt} end
return commit(write, plan)
