-- Forget the oldest finished requests while all of them together take more than a bound.
-- ARGV: most bytes, most requests to look at. Returns how many were forgotten before their time to live ended.
local most, num_forgotten = tonumber(ARGV[1]), 0
for _ = 1, tonumber(ARGV[2]) do
  local oldest = redis.call('LINDEX', P .. 'results', 0)
  if not oldest then break end
  local id, size = string.match(oldest, '^(%S+) (%d+)$')
  local is_kept = redis.call('EXISTS', record_of(id)) == 1
  if is_kept and tonumber(redis.call('GET', P .. 'results_bytes') or 0) <= most then break end
  redis.call('LPOP', P .. 'results')
  redis.call('DECRBY', P .. 'results_bytes', size)
  if is_kept then
    keep_name(id, fields_of(id, 'name')[1], 0)
    redis.call('UNLINK', record_of(id), log_of(id))
    num_forgotten = num_forgotten + 1
  end
end
return num_forgotten
