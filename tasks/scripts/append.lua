-- Deliver one step: for each running request, append to its log and publish, if the attempt is still its own.
-- ARGV: time to live of a result (s), then for each request: id, attempt, event body ('' asks only whether
-- to go on), number of tokens, prompt tokens ('' if told before), end ('' unless last), gaps between tokens ('').
-- Returns for each request 1 (go on) or 0 (stop: another attempt runs, or it is over).
local ttl, verdicts, posts = ARGV[1], {}, {}
for i = 2, #ARGV, 7 do
  local id, body, num_tokens, end_json = ARGV[i], ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 5]
  local key = record_of(id)
  local r = redis.call('HMGET', key, 'attempt', 'state', 'watch', 'seq', 'first')
  if r[1] ~= ARGV[i + 1] or r[2] ~= 'running' then
    table.insert(verdicts, 0)
  else
    if body ~= '' then
      collect(posts, r[3], id, log_event(id, tonumber(r[4]) + 1, body, end_json))
      redis.call('HINCRBY', key, 'tokens', num_tokens)
      if not r[5] and num_tokens > 0 then redis.call('HSET', key, 'first', string.format('%.6f', now())) end
      if ARGV[i + 4] ~= '' then redis.call('HSET', key, 'prompt_tokens', ARGV[i + 4]) end
      if end_json ~= '' then settle(id, cjson.decode(end_json).state, end_json, ARGV[i + 6], ttl) end
    end
    table.insert(verdicts, 1)
  end
end
publish(posts)
return verdicts
