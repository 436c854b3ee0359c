-- Write the record of a request that is about to be queued.
-- ARGV: id, request as JSON, model, watch, queue timeout (s), time to live until queued (s).
-- Returns 1, or 0 when the id is taken.
local id, key = ARGV[1], record_of(ARGV[1])
if redis.call('EXISTS', key) == 1 then return 0 end
redis.call('HSET', key, 'state', 'new', 'request', ARGV[2], 'model', ARGV[3], 'watch', ARGV[4],
  'queue_timeout', ARGV[5], 'created', string.format('%.6f', now()), 'attempt', 0, 'seq', 0, 'tokens', 0)
redis.call('EXPIRE', key, ARGV[6])
return 1
