-- keys: lease machines totals
-- Change one row by compare-and-set on its state.
local owner, fence, name, expect, text = take(), take(), take(), take(), take()
if not leads(owner, fence) then return {'fenced'} end
local old = redis.call('HGET', K.machines, name)
if old == text then return {'ok', text} end
if not old then return {'changed', ''} end
local row = read_row(old)
if not row then return {'corrupt', name} end
if row.state ~= expect then return {'changed', old} end
local plan = new_plan()
plan_change(plan, name, row, text)
apply(plan, {})
return {'ok', text}
