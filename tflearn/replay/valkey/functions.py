"""What the server does in one step: a library of functions in Lua that the keeper of a server loads.

All items of a server are entries of one stream. An entry's id is 's-q': so many items were inserted into the table that
is scanned, and so many into the queue, with this one. So the ids are the counts; nothing has to be counted besides, and
nothing is counted wrongly if a client dies. The readers of the queue are one consumer group, whose last delivered id
says what was drawn. An entry's only field is named after the tables that have it, and holds the item's bytes.

A writer that finds the queue full leaves its name, and waits for a message to it: how many items it may send.
"""

import re

ITEMS, STATE, BLOCKED = KEYS = 'tflearn:items', 'tflearn:state', 'tflearn:blocked'
GROUP = 'tflearn'
NO_TABLES = re.compile('NOTABLES|Function not found')  # in the errors of a server that has none of our tables
INSERT, DELIVERED, STATUS = 'tflearn_insert', 'tflearn_delivered', 'tflearn_status'

LIBRARY = """#!lua name=tflearn
local function id(scanned, queued)
  return string.format('%.0f-%.0f', scanned, queued)
end

local function read(keys)
  local names = {'scan', 'max_scan', 'queue', 'max_queue', 'scanned', 'queued'}
  local values = redis.call('HMGET', keys[2], unpack(names))
  if not values[1] then return nil end
  local state = {}
  for i, name in ipairs(names) do state[name] = values[i] end
  state.max_scan, state.max_queue = tonumber(state.max_scan), tonumber(state.max_queue)
  state.scanned, state.queued = tonumber(state.scanned or 0), tonumber(state.queued or 0)
  local group = redis.call('XINFO', 'GROUPS', keys[1])[1]
  for i = 1, #group, 2 do
    if group[i] == 'last-delivered-id' then
      local scanned, queued = string.match(group[i + 1], '(%d+)-(%d+)')
      state.past, state.drawn = tonumber(scanned), tonumber(queued)
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

-- Arguments: the name of the writer, then the tables and the bytes of each item. Returns how many fit.
local function insert(keys, args)
  local state = read(keys)
  if not state then return redis.error_reply('NOTABLES this server has no tables of a replay') end
  local count = 0
  for i = 2, #args, 2 do
    local tables = ',' .. args[i] .. ','
    if tables:find(',' .. state.queue .. ',', 1, true) then
      if state.queued - state.drawn >= state.max_queue then
        redis.call('SADD', keys[3], args[1])
        break
      end
      state.queued = state.queued + 1
    end
    if tables:find(',' .. state.scan .. ',', 1, true) then state.scanned = state.scanned + 1 end
    redis.call('XADD', keys[1], id(state.scanned, state.queued), args[i], args[i + 1])
    count = count + 1
  end
  if count > 0 then
    local scanned, queued = string.format('%.0f', state.scanned), string.format('%.0f', state.queued)
    redis.call('HSET', keys[2], 'scanned', scanned, 'queued', queued)
    trim(keys, state)
  end
  return count
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
redis.register_function{function_name = 'tflearn_delivered', callback = delivered, flags = {'allow-oom'}}
redis.register_function{function_name = 'tflearn_status', callback = status, flags = {'no-writes'}}
"""
