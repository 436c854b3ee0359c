-- Register a child, or keep a worker's last words.
-- ARGV: sorted set of ids, the id, seconds that this counts, then each key with the text to keep there.
local t = now()
for i = 4, #ARGV, 2 do redis.call('SET', ARGV[i], ARGV[i + 1], 'EX', ARGV[3]) end
redis.call('ZADD', ARGV[1], t + tonumber(ARGV[3]), ARGV[2])
redis.call('ZREMRANGEBYSCORE', ARGV[1], '-inf', t)
