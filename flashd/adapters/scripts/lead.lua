-- keys: lease fence
-- Take or renew the namespace's lease, by the server's clock. Sent twice, it finds itself as the owner: same fence.
local holder, owner, ttl_ms, may_take_own = take(), take(), tonumber(take()), take() == '1'
local now = now_ms()
local lease = redis.call('HMGET', K.lease, 'holder', 'owner', 'fence', 'until_ms')
local remaining = (tonumber(lease[4]) or 0) - now
if lease[2] == owner then
  redis.call('HSET', K.lease, 'until_ms', whole(now + ttl_ms))
  return {'led', lease[3], ''}
end
local free = not lease[2] or lease[2] == '' or remaining <= 0
if not free and not (may_take_own and lease[1] == holder) then return {'held', whole(remaining), lease[1] or ''} end
-- The counter may have been lost or set back; the fence in the lease must still be beaten.
local given = math.max(tonumber(redis.call('GET', K.fence)) or 0, tonumber(lease[3]) or 0) + 1
redis.call('SET', K.fence, whole(given))
redis.call('HSET', K.lease, 'holder', holder, 'owner', owner, 'fence', whole(given), 'until_ms', whole(now + ttl_ms))
return {'led', whole(given), ''}
