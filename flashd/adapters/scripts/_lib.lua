-- Shared by every script; the loader puts it below the table K of the script's keys.
-- Rules: look at everything first, write last; answer a word, never raise for a refusal that is to be expected.

local unpack = unpack or table.unpack
local GROUP = 'flashd'
local DAY_S = 86400
local EVENTS_KEEP_MS = 30 * DAY_S * 1000
local PROGRESS_KEEP_MS = DAY_S * 1000
local TERMINAL = {succeeded = true, failed = true, cancelled = true}

-- Arguments: single values, and lists with their length in front.
local position = 0

local function take()
  position = position + 1
  return ARGV[position]
end

local function take_list()
  local list = {}
  for i = 1, tonumber(take()) do list[i] = take() end
  return list
end

local function take_lists()
  local lists = {}
  for i = 1, tonumber(take()) do lists[i] = take_list() end
  return lists
end

local function whole(number)
  return string.format('%.0f', number)
end

-- The value of a field in a flat list of fields and values.
local function value_of(list, field)
  for i = 1, #list, 2 do
    if list[i] == field then return list[i + 1] end
  end
end

-- Owner and fence together: after a failover that lost writes a fence may be given out again. The lease's end is not
-- looked at: a lease that ran out and that nobody took is still ours.
local function leads(owner, fence)
  local lease = redis.call('HMGET', K.lease, 'owner', 'fence')
  return owner ~= '' and lease[1] == owner and lease[2] == fence
end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function append(stream, keep_ms, fields)
  local oldest = whole(now_ms() - keep_ms)
  return redis.call('XADD', stream, 'MINID', '~', oldest, '*', unpack(fields))
end

-- To `events` and under the same id to the run's own stream.
local function append_event(fields)
  local id = append(K.events, EVENTS_KEEP_MS, fields)
  local same = redis.pcall('XADD', K.log, id, unpack(fields))
  -- Only when `events` was deleted from outside and the server's clock was set back: keep the entry all the same.
  if type(same) == 'table' and same.err then redis.call('XADD', K.log, '*', unpack(fields)) end
  return id
end

local function tell(channel, run_id, id)
  redis.call('PUBLISH', channel, id)
  redis.call('PUBLISH', channel .. ':' .. run_id, id)
end

local function in_stream(stream, entry)
  return entry ~= '' and #redis.call('XRANGE', stream, entry, entry) > 0
end

local function consume(stream, entry)
  if entry == '' then return end
  redis.call('XACK', stream, GROUP, entry)
  redis.call('XDEL', stream, entry)
end

-- Ledger rows. A plan holds the changes and what they do to the totals (rows that are not abandoned).

local function read_row(text)
  local ok, row = pcall(cjson.decode, text)
  if not ok or type(row) ~= 'table' then return nil end
  if type(row.state) ~= 'string' or type(row.usd_per_hour) ~= 'number' then return nil end
  return row
end

local function weight(row)
  if not row or row.state == 'abandoned' then return 0, 0 end
  return 1, math.floor(row.usd_per_hour * 1000000 + 0.5)
end

local function new_plan()
  return {changes = {}, count = 0, micro_usd = 0}
end

local function plan_change(plan, name, before, text)
  local count, micro_usd = weight(before)
  local after_count, after_micro_usd = weight(text ~= '' and read_row(text) or nil)
  plan.count = plan.count + after_count - count
  plan.micro_usd = plan.micro_usd + after_micro_usd - micro_usd
  plan.changes[#plan.changes + 1] = {name, text}
end

-- Set or (text '') remove a row. A row that is gone is made again only under the name `create`.
local function plan_row(plan, name, text, create)
  local old = redis.call('HGET', K.machines, name)
  local before = old and read_row(old) or nil
  if old and not before then
    plan.corrupt = name
  elseif old or (text ~= '' and name == create) then
    plan_change(plan, name, before, text)
  end
end

-- A live row of an attempt that ended becomes `deleting`. Changed as text: decoding and encoding would round the times.
local function plan_release(plan, name, now)
  local old = redis.call('HGET', K.machines, name)
  if not old then return end
  local row = read_row(old)
  if not row then
    plan.corrupt = name
    return
  end
  if row.state ~= 'live' then return end
  local from, to = string.find(old, '"state":"live"', 1, true)
  if not from then
    plan.corrupt = name
    return
  end
  local text = string.sub(old, 1, from - 1) .. '"state":"deleting"' .. string.sub(old, to + 1)
  from, to = string.find(text, '"deleting_at":null', 1, true)
  if from then text = string.sub(text, 1, from - 1) .. '"deleting_at":' .. now .. string.sub(text, to + 1) end
  plan_change(plan, name, row, text)
end

local function apply(plan, answer)
  for _, change in ipairs(plan.changes) do
    if change[2] == '' then
      redis.call('HDEL', K.machines, change[1])
    else
      redis.call('HSET', K.machines, change[1], change[2])
    end
    answer[#answer + 1] = change[1]
    answer[#answer + 1] = change[2]
  end
  if plan.count ~= 0 then redis.call('HINCRBY', K.totals, 'count', whole(plan.count)) end
  if plan.micro_usd ~= 0 then redis.call('HINCRBY', K.totals, 'micro_usd', whole(plan.micro_usd)) end
end

-- One step of a run.

local function read_write()
  local write = {owner = take(), fence = take(), channel = take(), run_id = take(), expect = take(), op = take()}
  write.core = take()
  write.fields = take_list()
  write.events = take_lists()
  write.progress = take_lists()
  write.rows = take_list()
  return write
end

-- State and events must tell the same story: contiguous sequence, the hash's state that of the last event.
local function illegal(write, state, sequence)
  for i, fields in ipairs(write.events) do
    if value_of(fields, 'sequence') ~= whole(tonumber(sequence) + i) then
      return {'illegal', 'sequence', value_of(fields, 'sequence') or '', 'after', sequence}
    end
  end
  local last = write.events[#write.events]
  local new_state = value_of(write.fields, 'state') or state
  local new_sequence = value_of(write.fields, 'sequence') or sequence
  if new_state ~= (last and value_of(last, 'state') or state) then
    return {'illegal', 'state', new_state, 'is not that of the last event'}
  end
  if new_sequence ~= whole(tonumber(sequence) + #write.events) then
    return {'illegal', 'sequence', new_sequence, 'is not that of the last event'}
  end
end

-- nil, or the answer that refuses the step. `ended`: whether the run must have ended (only `released` wants that).
local function refusal(write, ended)
  if not leads(write.owner, write.fence) then return {'fenced'} end
  local core = redis.call('HMGET', K.core, 'version', 'op', 'answer')
  if core[2] == write.op then return {'replay', core[3]} end
  local run = redis.call('HMGET', K.run, 'state', 'sequence', 'released')
  if not run[1] or not core[1] then return {'missing'} end
  if (TERMINAL[run[1]] and not ended) or run[3] == '1' then return {'ended', run[1]} end
  if core[1] ~= write.expect then return {'stale', core[1]} end
  if ended and not TERMINAL[run[1]] then return {'illegal', 'the run has not ended'} end
  return illegal(write, run[1], run[2])
end

local function plan_rows(write, create)
  local plan = new_plan()
  for i = 1, #write.rows, 2 do plan_row(plan, write.rows[i], write.rows[i + 1], create) end
  return plan
end

local function commit(write, plan)
  local version = whole(tonumber(write.expect) + 1)
  if #write.fields > 0 then redis.call('HSET', K.run, unpack(write.fields)) end
  local last
  for _, fields in ipairs(write.events) do last = append_event(fields) end
  if last then
    redis.call('HSET', K.run, 'last_event_id', last)
  else
    last = redis.call('HGET', K.run, 'last_event_id') or ''
  end
  for _, fields in ipairs(write.progress) do append(K.progress, PROGRESS_KEEP_MS, fields) end
  local answer = {'ok', version, last}
  apply(plan, answer)
  redis.call('HSET', K.core, 'version', version, 'state', write.core, 'op', write.op,
    'answer', table.concat(answer, '\n'))
  if #write.events > 0 then tell(write.channel, write.run_id, last) end
  return answer
end

-- What a repair found is kept under its operation, so that a repeat tells it again instead of finding nothing.

local function told_before(op, subject)
  local kept = redis.call('HGET', K.repaired, subject)
  if kept and string.sub(kept, 1, #op + 1) == op .. '\n' then return {'replay', string.sub(kept, #op + 2)} end
end

local function tell_once(op, subject, answer)
  if #answer > 1 then redis.call('HSET', K.repaired, subject, op .. '\n' .. table.concat(answer, '\n')) end
  return answer
end
