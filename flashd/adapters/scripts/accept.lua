-- keys: lease requests run core events log runs active names tomb cancel counters remembered
-- Make a request durable and ack its entry. The same operation again finds its own mark; a conflict writes nothing.
local owner, fence, channel, run_id, op, entry = take(), take(), take(), take(), take(), take()
local hash10, sha, accepted_at, state = take(), take(), take(), take()
local fields, event = take_list(), take_list()
if not leads(owner, fence) then return {'fenced'} end

local function duplicate(last_event_id)
  if in_stream(K.requests, entry) then
    redis.call('HINCRBY', K.counters, 'duplicates', 1)
    redis.call('PUBLISH', channel .. ':' .. run_id, last_event_id)
    consume(K.requests, entry)
  end
  return {'duplicate', last_event_id}
end

local known = redis.call('HMGET', K.run, 'request_sha256', 'last_event_id', 'cancel_requested_at')
local mine = redis.call('HMGET', K.core, 'accept_op', 'accept_event')
if known[1] and mine[1] == op then return {'accepted', mine[2], known[3] ~= '' and '1' or '0'} end
if known[1] == sha then return duplicate(known[2] or '') end
if known[1] then return {'conflict'} end
local tomb = redis.call('HMGET', K.tomb, 'sha', 'last_event_id')
if tomb[1] == sha then return duplicate(tomb[2] or '') end
if tomb[1] then return {'conflict'} end
local named = redis.call('HGET', K.names, hash10)
if named and named ~= run_id then return {'hash_taken', named} end
if value_of(event, 'sequence') ~= '1' or value_of(event, 'state') ~= value_of(fields, 'state') then
  return {'illegal', 'the accepted event must have sequence 1 and the state of the run'}
end

local cancel = redis.call('HMGET', K.cancel, 'at', 'by', 'reason', 'entry')
redis.call('HSET', K.run, unpack(fields))
-- Left over from a run that was forgotten, they would bring its old expiry with them.
redis.call('DEL', K.core, K.log)
redis.call('HSET', K.run, 'request_sha256', sha, 'accepted_at', accepted_at, 'sequence', '1', 'cancel_requested_at',
  cancel[1] or '', 'cancel_by', cancel[2] or '', 'cancel_reason', cancel[3] or '', 'cancel_entry', cancel[4] or '')
local id = append_event(event)
redis.call('HSET', K.run, 'last_event_id', id)
redis.call('HSET', K.core, 'version', '1', 'state', state, 'op', op, 'answer', 'ok\n1\n' .. id, 'accept_op', op,
  'accept_event', id, 'hash10', hash10)
redis.call('ZADD', K.runs, accepted_at, run_id)
redis.call('ZADD', K.active, accepted_at, run_id)
redis.call('HSET', K.names, hash10, run_id)
redis.call('ZREM', K.remembered, hash10)
redis.call('DEL', K.cancel)
consume(K.requests, entry)
tell(channel, run_id, id)
return {'accepted', id, cancel[1] and '1' or '0'}
