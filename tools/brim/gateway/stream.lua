-- ModelStreamInfer: every message is a request of its own, which is checked and admitted like one. No part of it goes on
-- before all of it is there and was looked at.
--
-- A stream says which of its requests is answered by the model's name alone, and of some errors not even that. Those that
-- were let in wait for an answer, or for the last one where there are several, each with its slot; of the others (refused
-- here, or for models without bounds), whose answers come on the same stream, only the number is known. OUTCOMES comes from
-- counters.py, in front of this text.

-- Of an answer this much is looked at, which has the model's name, the longest id, and whether it is the last one.
local ANSWER_HEAD_BYTES = 1024 + LIMITS.quoted_bytes

-- For the counters, and for the way back.
local function note(handle, key, value)
  handle:streamInfo():dynamicMetadata():set("brim", key, value)
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
    call_ms = grpc_timeout_ms(headers:get("grpc-timeout") or ""),
    began_ms = time_ms(handle),
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

-- How many have no end yet. When the stream ends, their caller has left.
local function count_left(handle, stream)
  note(handle, "left", #stream.admitted)
end

-- What is left of the deadline that the call itself has, in Triton's eyes for none of its requests.
local function left_of_call(handle, stream)
  return stream.call_ms and math.max(1, stream.call_ms - (time_ms(handle) - stream.began_ms))
end

-- Lets a request in and returns what goes on of it, or nil, reason and text of its refusal.
local function passed_on(handle, stream, frame)
  local fine, asked, name = pcall(check_grpc, frame)
  if not fine then
    return nil, "bad_request", type(asked) == "table" and asked.text or "the request could not be checked"
  end
  local model = models[name]
  if not model then
    stream.others = stream.others + 1
    return frame
  end
  local class_name = stream.class_name or asked.class
  local class = class_of(model.bounds, class_name, asked.priority)
  if not class or (asked.class and asked.class ~= class.name) then
    return nil, "unknown_class", no_class(model, name, class and asked.class or class_name)
  end
  if not stream.noted then
    note(handle, "model", name)
    note(handle, "class", class.name)
    stream.noted = true
  end
  local own_ms = shortest_ms(stream.timeout_ms, asked.timeout and math.ceil(asked.timeout / 1000), class.timeout_ms)
  if model.bounds.tells then
    own_ms = shortest_ms(own_ms, left_of_call(handle, stream))
    frame = framed(told_message(sub(frame, 6), model.bounds.has_classes and class.name, own_ms))
  end
  local reason, slot = admit(handle, model, class, own_ms, true)
  if reason then
    return nil, reason, format("%s: %s", reason, REFUSALS[reason][3])
  end
  stream.admitted[#stream.admitted + 1] = { slot = slot, name = name }
  count(handle, stream, "admitted")
  count_left(handle, stream)
  return frame
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
    local passed, reason, why = passed_on(handle, stream, frame)
    if not passed then
      passed = refusal_of(sub(frame, 6), why)
      stream.others = stream.others + 1
      count(handle, stream, reason)
    end
    done[#done + 1] = passed
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

local function outcome_of(answer)
  local reason = answer.error and host_reason(answer.error)
  return reason and "host_" .. reason or answer.error and "failed" or "answered"
end

-- One request of the stream may have been answered, by the model of that name or, without one, by an error. An error without
-- a name is taken for one of the others' while there are any: a count may be too high for a while, and is never too low.
-- A model that makes pieces says which is the last one; where it does not, the place is kept until the stream ends.
local function settle(handle, stream, answer)
  local model = models[answer.name]
  if model and model.bounds.pieces and not answer.is_last then
    return
  end
  for place, one in ipairs(stream.admitted) do
    if answer.name == one.name or (not answer.name and stream.others == 0) then
      table.remove(stream.admitted, place)
      count(handle, stream, outcome_of(answer))
      count_left(handle, stream)
      return forget(one.slot)
    end
  end
  stream.others = math.max(0, stream.others - 1)
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
        local fine, found = pcall(read_answer, sub(head, 6))
        settle(handle, streams[number], fine and found or {})
        passing, head = length_of(head) - (#head - 5), ""
      end
    end
  end
  close_stream(number)
end
