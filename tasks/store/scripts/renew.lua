-- Renew the leases that a live worker still has. ARGV: leases, then tags. Returns how many are in force.
-- XX: a lease that was lost to another worker must not come back.
local n, t = 0, now()
for i = 2, #ARGV do
  redis.call('ZADD', ARGV[1], 'XX', t, ARGV[i])
  if redis.call('ZSCORE', ARGV[1], ARGV[i]) then n = n + 1 end
end
return n
