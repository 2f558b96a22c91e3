-- ModelStreamInfer: every message is a request of its own, which is checked and admitted like one. No part of it goes on
-- before all of it is there and was looked at.
--
-- A stream says which of its requests is answered by the model's name alone, and of errors not even that. Those that were
-- let in wait for an answer, each with its slot; of the others (refused here, or for models without bounds), whose answers
-- come on the same stream, only the number is known. OUTCOMES comes from counters.py, in front of this text.

-- Of an answer this much is looked at: the model's name, or that it is an error.
local ANSWER_HEAD_BYTES = 512

-- For the counters, and for the way back.
local function note(handle, key, value)
  handle:streamInfo():dynamicMetadata():set("brim", key, value)
end

-- A varint of the protocol buffers.
local function varint(value)
  local bytes = {}
  repeat
    local rest = floor(value / 128)
    bytes[#bytes + 1] = string.char(value % 128 + (rest > 0 and 128 or 0))
    value = rest
  until value == 0
  return table.concat(bytes)
end

local function framed(message)
  local length = #message
  return string.char(0, floor(length / 16777216) % 256, floor(length / 65536) % 256, floor(length / 256) % 256, length % 256)
    .. message
end

local function length_of(frame)
  local a, b, c, d = byte(frame, 2, 5)
  return a * 16777216 + b * 65536 + c * 256 + d
end

-- A refusal has to come from Triton: no such model is there, and its name is the reason.
local function refusal_of(message, text)
  local id = ""
  pcall(read_fields, message, 1, #message, function(number, kind, from, to)
    if number == 3 and kind == BLOCK then
      id = sub(message, from, to)
    end
  end)
  local name = "(refused by the gateway: " .. text:gsub("[^ -~]", "?") .. ")"
  return framed("\10" .. varint(#name) .. name .. (id ~= "" and "\26" .. varint(#id) .. id or ""))
end

local function open_stream(handle, headers)
  last_slot = last_slot + 1
  local stream = {
    class_name = headers:get("x-brim-class"),
    timeout_ms = tonumber(headers:get("x-brim-timeout-ms") or ""),
    admitted = {},
    others = 0,
    counts = {},
  }
  streams[last_slot], stream_handles[last_slot] = stream, handle
  note(handle, "stream", last_slot)
  for _, outcome in ipairs(OUTCOMES) do
    stream.counts[outcome] = 0
    note(handle, outcome, 0)
  end
  return stream
end

local function count(handle, stream, outcome)
  stream.counts[outcome] = stream.counts[outcome] + 1
  note(handle, outcome, stream.counts[outcome])
end

-- Lets a request in, or returns reason and text of its refusal.
local function refusal_on(handle, stream, frame)
  local fine, asked, name = pcall(check_grpc, frame)
  if not fine then
    return "bad_request", type(asked) == "table" and asked.text or "the request could not be checked"
  end
  local model = models[name]
  if not model then
    stream.others = stream.others + 1
    return
  end
  local class = class_of(model.bounds, stream.class_name, asked.priority)
  if not class then
    return "unknown_class", no_class(model, name, stream.class_name)
  end
  if not stream.noted then
    note(handle, "model", name)
    note(handle, "class", class.name)
    stream.noted = true
  end
  local own_ms = shortest_ms(stream.timeout_ms, asked.timeout and math.ceil(asked.timeout / 1000), class.timeout_ms)
  local reason, slot = admit(handle, model, class, own_ms, true)
  if reason then
    return reason, format("%s: %s", reason, REFUSALS[reason][3])
  end
  stream.admitted[#stream.admitted + 1] = { slot = slot, name = name }
  count(handle, stream, "admitted")
end

-- The messages at the front of text that are complete, the refused ones replaced; what is left of it, and how many bytes
-- make that complete.
local function looked_at(handle, stream, text)
  local done, at, wanted = {}, 1, 5
  while #text - at >= 4 do
    local length = length_of(sub(text, at, at + 4))
    if length > LIMITS.body_bytes then
      refuse("a message of %.0f bytes is more than the %d that are taken", length, LIMITS.body_bytes)
    elseif at + 4 + length > #text then
      wanted = 5 + length
      break
    end
    local frame = sub(text, at, at + 4 + length)
    local reason, why = refusal_on(handle, stream, frame)
    if reason then
      frame = refusal_of(sub(frame, 6), why)
      stream.others = stream.others + 1
      count(handle, stream, reason)
    end
    done[#done + 1] = frame
    at = at + 5 + length
  end
  return table.concat(done), sub(text, at), wanted
end

-- After a fault nothing of the stream goes on. Pieces of a long message are put together once, when all of them are there.
local function look_at_stream(handle, headers)
  local stream = open_stream(handle, headers)
  local pieces, held, wanted, broken = {}, 0, 5, false
  for chunk in handle:bodyChunks() do
    local passes = ""
    if not broken then
      pieces[#pieces + 1] = chunk:getBytes(0, chunk:length())
      held = held + chunk:length()
    end
    if not broken and held >= wanted then
      local fine, done, left, more = pcall(looked_at, handle, stream, table.concat(pieces))
      if fine then
        passes, pieces, held, wanted = done, { left }, #left, more
      else
        pieces, broken = {}, true
        handle:logWarn("a stream was cut off: " .. (type(done) == "table" and done.text or tostring(done)))
      end
    end
    chunk:setBytes(passes)
  end
end

-- One request of the stream has been answered, by the model of that name or, without one, by an error. An error is taken
-- for one of the others' while there are any: a count may be too high for a while, and is never too low.
local function settle(stream, name)
  for place, one in ipairs(stream.admitted) do
    if name == one.name or (not name and stream.others == 0) then
      table.remove(stream.admitted, place)
      return forget(one.slot)
    end
  end
  stream.others = math.max(0, stream.others - 1)
end

-- Of a ModelStreamInferResponse: error_message 1, infer_response 2; of the latter: model_name 1. The first field comes first.
local function name_in(message)
  if byte(message, 1) == 18 then
    local _, at = read_varint(message, 2, #message)
    if byte(message, at) == 10 then
      local length, from = read_varint(message, at + 1, #message)
      return sub(message, from, from + length - 1)
    end
  end
end

-- Once no more answers come, none of its requests is in flight.
local function close_stream(number)
  for _, one in ipairs(streams[number].admitted) do
    forget(one.slot)
  end
  streams[number] = nil
end

local function look_at_answers(handle, number)
  local head, passing = "", 0
  for chunk in handle:bodyChunks() do
    local at, last = 0, chunk:length()
    while at < last do
      if passing > 0 then
        local passed = math.min(passing, last - at)
        passing, at = passing - passed, at + passed
      else
        local wanted = #head < 5 and 5 or 5 + math.min(length_of(head), ANSWER_HEAD_BYTES)
        local taken = math.min(wanted - #head, last - at)
        head, at = head .. chunk:getBytes(at, taken), at + taken
      end
      if #head >= 5 and #head == 5 + math.min(length_of(head), ANSWER_HEAD_BYTES) then
        local fine, name = pcall(name_in, sub(head, 6))
        settle(streams[number], fine and name or nil)
        passing, head = length_of(head) - (#head - 5), ""
      end
    end
  end
  close_stream(number)
end
