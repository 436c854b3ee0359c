-- Say that a child lives. ARGV: its key, set of the children, id, description, seconds that this counts.
local t = now()
redis.call('SET', ARGV[1], ARGV[4], 'EX', ARGV[5])
redis.call('ZADD', ARGV[2], t + tonumber(ARGV[5]), ARGV[3])
redis.call('ZREMRANGEBYSCORE', ARGV[2], '-inf', t)
