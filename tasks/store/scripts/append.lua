-- Deliver one step: append to each running request's log and publish, if the attempt is still its latest.
-- ARGV: time to live of a result (s), then for each request: id, attempt, event number, event body ('': only
-- ask whether to go on), number of tokens, prompt tokens ('' if told before), end ('' unless last), gaps
-- between tokens ('' unless last), the attempt's fence ('': any).
-- Sending an item again is harmless: an event number is written once.
-- Returns for each request 1 (go on) or 0 (stop: it runs or waits elsewhere, or is over).
-- The fence tells two attempts with the same number apart, and an event number that leaves a gap stops its
-- attempt. Both happen when Redis comes back without its last second.
local ttl, verdicts, posts, generated = ARGV[1], {}, {}, 0

local function write(key, r, id, seq, body, num_tokens, prompt_tokens, end_json, itl_json)
  collect(posts, r[3], id, log_event(id, seq, body, end_json, tonumber(r[7]) + num_tokens, r[8]))
  generated = generated + num_tokens
  if not r[5] and num_tokens > 0 then redis.call('HSET', key, 'first', string.format('%.6f', now())) end
  if prompt_tokens ~= '' then redis.call('HSET', key, 'prompt_tokens', prompt_tokens) end
  if end_json ~= '' then settle(id, cjson.decode(end_json).state, end_json, itl_json, ttl) end
end

for i = 2, #ARGV, 9 do
  local id, seq, body = ARGV[i], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local key = record_of(id)
  local r = fields_of(id, 'attempt', 'state', 'watch', 'seq', 'first', 'fence', 'tokens', 'bytes')
  local is_mine = r[1] == ARGV[i + 1] and (ARGV[i + 8] == '' or r[6] == ARGV[i + 8])
  local is_written, is_next = tonumber(r[4] or 0) >= seq, tonumber(r[4] or 0) + 1 == seq
  local is_repeated = is_mine and body ~= '' and is_written
  -- If a cancel, for example, has ended the request meanwhile, its event has taken this event's number.
  if is_repeated and (r[2] == 'running' or ARGV[i + 6] ~= '') then
    table.insert(verdicts, 1)
  elseif not is_mine or r[2] ~= 'running' or (body ~= '' and not is_next) then
    table.insert(verdicts, 0)
  else
    if body ~= '' then
      write(key, r, id, seq, body, tonumber(ARGV[i + 4]), ARGV[i + 5], ARGV[i + 6], ARGV[i + 7])
    end
    table.insert(verdicts, 1)
  end
end
if generated > 0 then redis.call('HINCRBY', P .. 'totals', 'generated_tokens', generated) end
publish(posts)
return verdicts
