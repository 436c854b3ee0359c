-- Everything that a dashboard shows, at one moment. ARGV: the suffixes of a queue's lists by priority.
-- Returns {time, models (name, JSON, ...), waiting per model, children's JSON, {model, child} of each running
-- request, totals (name, count, ...), recent requests' JSON, their owners ('-' for one that is not kept)}.
local models = redis.call('HGETALL', P .. 'models')
local waiting, children, running = {}, {}, {}
for i = 1, #models, 2 do
  local n = 0
  for _, suffix in ipairs(ARGV) do n = n + redis.call('LLEN', P:sub(1, -2) .. '.' .. models[i] .. suffix) end
  table.insert(waiting, n)
end
for _, id in ipairs(redis.call('ZRANGE', P .. 'children', 0, -1)) do
  -- Children of the last release have only the second key.
  table.insert(children, redis.call('GET', P .. 'heartbeat:' .. id) or redis.call('GET', P .. 'child:' .. id) or nil)
end
for _, id in ipairs(redis.call('ZRANGE', P .. 'running', 0, -1)) do
  local r = fields_of(id, 'model', 'child')
  table.insert(running, { r[1] or '', r[2] or '' })
end
local recent, owners = redis.call('LRANGE', P .. 'recent', 0, -1), {}
for _, finished in ipairs(recent) do
  local r = fields_of(string.match(finished, '"id": ?"([^"]*)"') or '', 'state', 'owner')
  table.insert(owners, not r[1] and '-' or r[2] or '')
end
return { string.format('%.3f', now()), models, waiting, children, running, redis.call('HGETALL', P .. 'totals'),
  recent, owners }
