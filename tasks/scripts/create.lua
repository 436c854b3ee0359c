-- Write the record of a request that is about to be queued, or find the one that its Idempotency-Key stands for.
-- ARGV: id, request as JSON, model, watch, queue timeout (s), time to live until queued (s), time limit (s, ''
-- if none), name under which its key is kept ('' if none), fingerprint of what was asked.
-- Returns {id, 1 if written or 0 if it was there, state, time created}, or {} when the key stands for something else.
local id, name, fingerprint = ARGV[1], ARGV[8], ARGV[9]

local function known(other)
  local r = redis.call('HMGET', record_of(other), 'state', 'created')
  return r[1] and { other, 0, r[1], r[2] }
end

if name ~= '' then
  local print, other = string.match(redis.call('GET', name) or '', '(%S+) (%S+)')
  local found = other and known(other)
  if found then return print == fingerprint and found or {} end
end
local taken = known(id)
if taken then return taken end

local key, created = record_of(id), string.format('%.6f', now())
redis.call('HSET', key, 'state', 'new', 'request', ARGV[2], 'model', ARGV[3], 'watch', ARGV[4],
  'queue_timeout', ARGV[5], 'created', created, 'attempt', 0, 'seq', 0, 'tokens', 0)
redis.call('EXPIRE', key, ARGV[6])
if ARGV[7] ~= '' then redis.call('HSET', key, 'time_limit', ARGV[7]) end
if name ~= '' then
  redis.call('SET', name, fingerprint .. ' ' .. id, 'EX', ARGV[6])
  redis.call('HSET', key, 'name', name)
end
return { id, 1, 'new', created }
