-- Counts each model's requests in flight, and refuses at once what would not be answered in time: the least important first.
--
-- ADMITTED comes from the generated configuration: model -> rows of a full batch, batch time tau0_ms + alpha_ms * rows, and
-- its classes, the most important first, each with the number of requests in flight, of all classes together, at which it is
-- refused. The cluster's circuit breaker holds the bound of all of them; it cannot tell one class from another.
--
-- Envoy tells a script when an answer begins, not when a caller leaves. But the handle of a stream is garbage as soon as
-- the stream has ended: what a weak table has lost was left by its caller. Counts are looked over in this way before
-- anybody is refused, so they are too high for the pause between two sweeps at most. Each worker of Envoy counts for itself.

local SWEEP_EVERY_MS, SWEEP_AT_LEAST_EVERY_MS = 10, 1000
-- The next sweep comes so many times later as one took: all of them take a twentieth of the worker at most.
local SWEEP_PAUSE = 20

local LONGEST_MS = 86400000
local REFUSALS = {
  queue_full = { 429, 8, "the model has as many requests in flight as it can answer in time" },
  shed = { 429, 8, "the model is busy with more important requests" },
  deadline_unreachable = { 504, 4, "the request cannot be answered before its deadline: too much is ahead of it" },
}
local GRPC_UNITS_MS = { H = 3600000, M = 60000, S = 1000, m = 1, u = 0.001, n = 0.000001 }

local models = {}
for name, bounds in pairs(ADMITTED) do
  models[name] = { bounds = bounds, in_flight = 0, abandoned = 0, seen_ms = 0 }
end
local handles = setmetatable({}, { __mode = "v" })
local requests, last_slot, swept_ms, sweep_took_ms = {}, 0, 0, 0
local bodies, body_handles, held_bytes = {}, setmetatable({}, { __mode = "v" }), 0
local streams, stream_handles = {}, setmetatable({}, { __mode = "v" })

local told_ms, set_back_ms = 0, 0

-- Replicas share a model's work: its bounds are those of each, and so many times as much is done in a time. SERVING_FILE is
-- nil where there is one server; else it holds how many take requests, of whom one is still asked when there is none.
local SERVING_READ_EVERY_MS = 100
local serving, serving_read_ms = 1, nil

local function count_serving(now_ms)
  if not SERVING_FILE or (serving_read_ms and now_ms - serving_read_ms < SERVING_READ_EVERY_MS) then
    return
  end
  serving_read_ms = now_ms
  local file = io.open(SERVING_FILE)
  if file then
    serving = math.max(1, tonumber(file:read("*l")) or serving)
    file:close()
  end
end

-- Envoy's clock is the wall clock. What it is set back by does not count: else nothing would be swept or drained until it is
-- as late again.
local function time_ms(handle)
  local wall_ms = handle:timestamp()
  set_back_ms = set_back_ms + math.max(0, told_ms - wall_ms)
  told_ms = wall_ms
  return wall_ms + set_back_ms
end

local function batch_ms(bounds, rows)
  return bounds.tau0_ms + bounds.alpha_ms * rows
end

-- Triton executes an HTTP request whose caller has left or whose time has passed (server#7077). It takes a place in the
-- queue that nobody waits for, until as many batches have run as it takes to drain it.
local function drain(model, now_ms)
  local bounds = model.bounds
  if model.abandoned > 0 then
    local drained = (now_ms - model.seen_ms) * bounds.rows * serving / batch_ms(bounds, bounds.rows)
    model.abandoned = math.max(0, model.abandoned - drained)
  end
  model.seen_ms = now_ms
end

-- Once its time of execution is over, the server has worked off what its caller has abandoned at some time before.
local function forget(slot, abandoned_at_ms)
  local request = requests[slot]
  requests[slot], handles[slot] = nil, nil
  if not request then
    return
  end
  local model = request.model
  model.in_flight = model.in_flight - 1
  if abandoned_at_ms and request.done_ms and abandoned_at_ms < request.done_ms then
    model.abandoned = model.abandoned + 1
  end
end

local function let_go(slot)
  held_bytes = held_bytes - (bodies[slot] or 0)
  bodies[slot], body_handles[slot] = nil, nil
end

local function sweep(now_ms)
  swept_ms = now_ms
  local began_s = os.clock()
  collectgarbage()
  for slot in pairs(requests) do
    if not handles[slot] then
      forget(slot, now_ms)
    end
  end
  for slot in pairs(bodies) do
    if not body_handles[slot] then
      let_go(slot)
    end
  end
  for number in pairs(streams) do
    if not stream_handles[number] then
      streams[number] = nil
    end
  end
  sweep_took_ms = (os.clock() - began_s) * 1000
end

local function may_sweep(now_ms)
  return now_ms - swept_ms >= math.max(SWEEP_EVERY_MS, SWEEP_PAUSE * sweep_took_ms)
end

-- Sets memory aside for a body that is on its way. Nil when there is none left; small bodies need none.
local function hold(handle, bytes)
  if bytes <= LIMITS.small_body_bytes then
    return 0
  end
  local now_ms = time_ms(handle)
  if held_bytes + bytes > LIMITS.held_bytes and may_sweep(now_ms) then
    sweep(now_ms)
  end
  if held_bytes + bytes > LIMITS.held_bytes then
    return nil
  end
  last_slot = last_slot + 1
  bodies[last_slot], body_handles[last_slot] = bytes, handle
  held_bytes = held_bytes + bytes
  return last_slot
end

-- When a request would be answered that comes behind so many. Of the batch that runs, half is taken to be over.
local function finish_ms(bounds, ahead)
  ahead = math.floor(ahead / serving)
  local full, rest = math.floor(ahead / bounds.rows), ahead % bounds.rows
  local wait = 0
  if full > 0 then
    wait = (full - 0.5) * batch_ms(bounds, bounds.rows)
  elseif rest > 0 then
    wait = 0.5 * batch_ms(bounds, rest)
  end
  return wait + batch_ms(bounds, math.min(rest + 1, bounds.rows))
end

local function reason_against(model, class, timeout_ms)
  local bounds, ahead = model.bounds, model.in_flight + model.abandoned
  if class.in_flight and ahead >= class.in_flight * serving then
    return class == bounds.classes[1] and "queue_full" or "shed"
  elseif timeout_ms and bounds.tau0_ms and finish_ms(bounds, math.floor(ahead)) > timeout_ms then
    return "deadline_unreachable"
  end
end

-- The class that a request belongs to: by name, else by KServe's priority, else the most important one. Nil when there is
-- none of that name.
local function class_of(bounds, name, priority)
  for _, class in ipairs(bounds.classes) do
    if name == class.name or (not name and priority == class.priority) then
      return class
    end
  end
  return not name and bounds.classes[1] or nil
end

local function no_class(model, name, class_name)
  return format("x-brim-class %s is no class of callers of %s: %s", shown(class_name), name, model.bounds.class_names)
end

-- The shortest of the request's own bounds in milliseconds. What is not a time from 1 ms to a day is none.
local function shortest_ms(...)
  local shortest
  for place = 1, select("#", ...) do
    local own_ms = select(place, ...)
    if own_ms and own_ms >= 1 and own_ms <= LONGEST_MS and (not shortest or own_ms < shortest) then
      shortest = own_ms
    end
  end
  return shortest
end

-- Of the form "100m".
local function grpc_timeout_ms(header)
  local number, unit = match(header, "^(%d+)([HMSmun])$")
  return number and tonumber(number) * GRPC_UNITS_MS[unit]
end

-- Takes a request in and returns nil and its slot, or returns why not.
local function admit(handle, model, class, timeout_ms, is_grpc)
  local now_ms = time_ms(handle)
  count_serving(now_ms)
  drain(model, now_ms)
  local reason = reason_against(model, class, timeout_ms)
  if may_sweep(now_ms) and (reason or now_ms - swept_ms >= SWEEP_AT_LEAST_EVERY_MS) then
    sweep(now_ms)
    reason = reason_against(model, class, timeout_ms)
  end
  if reason then
    return reason
  end
  last_slot = last_slot + 1
  -- Triton drops a gRPC call that is abandoned, and executes any other.
  local done_ms = not is_grpc and model.bounds.tau0_ms
    and now_ms + finish_ms(model.bounds, math.floor(model.in_flight + model.abandoned))
  requests[last_slot] = { model = model, done_ms = done_ms or nil }
  handles[last_slot] = handle
  model.in_flight = model.in_flight + 1
  return nil, last_slot
end
