-- keys: lease
-- Free the lease for a standby. Its former owner may write nothing any more.
local owner, fence = take(), take()
if leads(owner, fence) then redis.call('HSET', K.lease, 'owner', '', 'until_ms', '0') end
return {'resigned'}
