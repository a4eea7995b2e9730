-- The functions of functions.py, which puts the name of the library and the number `first` before them.

local function id(scanned, queued)
  return string.format('%.0f-%.0f', first + scanned, queued + 1)
end

-- Returns nil if the tables were lost, or their items, or who has drawn which of these.
local function read(keys)
  local names = {'scan', 'max_scan', 'queue', 'max_queue', 'scanned', 'queued'}
  local values = redis.call('HMGET', keys[2], unpack(names))
  if not values[1] then return nil end
  local state = {}
  for i, name in ipairs(names) do state[name] = values[i] end
  state.max_scan, state.max_queue = tonumber(state.max_scan), tonumber(state.max_queue)
  state.scanned, state.queued = tonumber(state.scanned or 0), tonumber(state.queued or 0)
  local groups = redis.pcall('XINFO', 'GROUPS', keys[1])
  local group = groups[1]
  if groups.err or not group then return nil end
  for i = 1, #group, 2 do
    if group[i] == 'last-delivered-id' then
      local scanned, queued = string.match(group[i + 1], '(%d+)-(%d+)')
      state.past, state.drawn = tonumber(scanned) - first, tonumber(queued) - 1
    end
  end
  return state
end

-- Removes what no table has any more: up to the oldest item to be scanned, or the next one to be drawn.
local function trim(keys, state)
  local oldest = state.max_scan > 0 and math.max(0, state.scanned - state.max_scan + 1) or state.scanned + 1
  local least = id(oldest, 0)
  if state.queued > state.drawn and state.past < oldest then least = id(state.past, state.drawn + 1) end
  redis.call('XTRIM', keys[1], 'MINID', least)
end

-- Counts one more item. Returns false if the queue is full; then the writer gets a message once it is not.
local function count(keys, state, writer, tables)
  tables = ',' .. tables .. ','
  if tables:find(',' .. state.queue .. ',', 1, true) then
    if state.queued - state.drawn >= state.max_queue then
      redis.call('SADD', keys[3], writer)
      return false
    end
    state.queued = state.queued + 1
  end
  if tables:find(',' .. state.scan .. ',', 1, true) then state.scanned = state.scanned + 1 end
  return true
end

local function save(keys, state)
  local scanned, queued = string.format('%.0f', state.scanned), string.format('%.0f', state.queued)
  redis.call('HSET', keys[2], 'scanned', scanned, 'queued', queued)
end

-- Whether items of this call would overtake others: its writer sent it before the last one was answered, of which the
-- server has not taken all. Arguments: the writer's name, the call's number, and that of the last one if so, else ''.
local function overtakes(args)
  return args[3] ~= '' and redis.call('HGET', args[1] .. ':taken', 'call') ~= args[3]
end

local function set_taken(args)
  redis.call('HSET', args[1] .. ':taken', 'call', args[2])
  redis.call('EXPIRE', args[1] .. ':taken', 60)
end

-- Arguments: those of `overtakes`, then the tables and the bytes of each item. Returns how many fit.
local function insert(keys, args)
  local state = read(keys)
  if not state then return redis.error_reply('NOTABLES this server has no tables of a replay') end
  local fit = 0
  if overtakes(args) then return fit end
  for i = 4, #args, 2 do
    if not count(keys, state, args[1], args[i]) then break end
    redis.call('XADD', keys[1], id(state.scanned, state.queued), args[i], args[i + 1])
    fit = fit + 1
  end
  if fit == (#args - 3) / 2 then set_taken(args) end
  if fit > 0 then
    save(keys, state)
    trim(keys, state)
  end
  return fit
end

-- Ends the place of the item before, if there was room.
local function close(keys)
  if redis.call('EXISTS', keys[4]) == 1 then redis.call('RENAME', keys[4], keys[1]) end
end

-- In a transaction, before the XADD of each large item. Arguments: as of `insert`, without the bytes.
local function make_place(keys, args)
  close(keys)
  local state = read(keys)
  if not state then return redis.error_reply('NOTABLES this server has no tables of a replay') end
  if redis.call('HEXISTS', keys[2], 'is_full') == 1 then return end
  if not overtakes(args) and count(keys, state, args[1], args[4]) then
    save(keys, state)
    redis.call('HINCRBY', keys[2], 'placed', 1)
    redis.call('XSETID', keys[1], id(state.scanned, state.queued - 1))
    redis.call('RENAME', keys[1], keys[4])
  else
    redis.call('HSET', keys[2], 'is_full', 1)
  end
end

-- At the end of such a transaction. Arguments: those of `overtakes`. Returns how many items fit.
local function placed(keys, args)
  close(keys)
  local state = read(keys)
  if not state then return redis.error_reply('NOTABLES this server has no tables of a replay') end
  local fit = tonumber(redis.call('HGET', keys[2], 'placed') or 0)
  if redis.call('HEXISTS', keys[2], 'is_full') == 0 then set_taken(args) end
  redis.call('HDEL', keys[2], 'placed', 'is_full')
  if fit > 0 then trim(keys, state) end
  return fit
end

-- Arguments: the ids of drawn entries that are in the queue alone. Wakes the writers that found it full.
local function delivered(keys, args)
  local state = read(keys)
  if not state then return redis.error_reply('NOTABLES this server has no tables of a replay') end
  if #args > 0 then redis.call('XDEL', keys[1], unpack(args)) end
  trim(keys, state)
  local room = state.max_queue - (state.queued - state.drawn)
  if room >= math.max(1, state.max_queue / 4) then  -- not for each place: a writer is to send several items at once
    local writers = redis.call('SMEMBERS', keys[3])
    for _, writer in ipairs(writers) do
      redis.call('LPUSH', writer, math.ceil(room / #writers))
      redis.call('EXPIRE', writer, 60)
    end
    redis.call('DEL', keys[3])
  end
  return 0
end

-- Returns the description of the tables; how many items were inserted into each, when the scanned one was empty, and
-- which were drawn.
local function status(keys)
  local state = read(keys)
  if not state then return redis.error_reply('NOTABLES this server has no tables of a replay') end
  local rest = redis.call('HMGET', keys[2], 'tables', 'base')
  return {rest[1], state.scanned, state.queued, tonumber(rest[2] or 0), state.past, state.drawn}
end

redis.register_function{function_name = 'tflearn_insert', callback = insert}
redis.register_function{function_name = 'tflearn_make_place', callback = make_place}
redis.register_function{function_name = 'tflearn_placed', callback = placed}
redis.register_function{function_name = 'tflearn_delivered', callback = delivered, flags = {'allow-oom'}}
redis.register_function{function_name = 'tflearn_status', callback = status, flags = {'no-writes'}}
