"""The scheduler in front of a continuous-batching engine: who has a seat, and what each step is given to prefill.

One step, in order:

1. What was cancelled or preempted is dropped from the engine; its blocks and its seat count until the step is over.
2. Those whose deadline has passed end.
3. A step's prompt tokens are planned: the step's limit less one token of every decoding sequence. They go to everyone in
   order (``Room.rank``), seat holders and, where a seat and all of their blocks are free, waiting ones; a share of them to the
   oldest unfinished prefill in any case. Of a prompt that does not fit what is left of the step, a *piece* does. Those who
   got no seat now either, and have waited too long, are refused.
4. The engine steps; tokens are handed out, and ends.

Pieces need an engine with a prefix cache (``EngineLimits.prefix_cache``); without one a prompt is handed over whole, and the
engine takes it in chunks in its own order. A piece is a sequence of its own: a prefix of the prompt, a whole number of
blocks long, of which one token is asked and thrown away. When it finishes its blocks stay in the engine's prefix cache, and
the next piece, or the rest of the prompt, takes them over. So the engine never holds more prompt than it runs in the next
step, and a short prompt that comes during a long prefill goes into the very next step, though the engine itself is first
come, first served. On openvino-genai 2026.4
a 2,000-token prompt in pieces of 288 took the processor time of one that was handed over whole (5.79 against 5.80 s, the
mean of three), every piece's blocks were found again, and the text was the same. What has to be measured on another engine:
handing the prefix over again, hashing it, one more token drawn; and on any engine, how often blocks are not found again
when the cache is nearly full. Nothing but time is lost then: the engine computes them again.

A preempted request goes on from prompt + text so far where that gives the same text (``Sampling.continues_from_text``).
Otherwise it begins again with its seed, and the tokens that were delivered already are checked and not delivered twice.

``submit``, ``cancel`` and ``stop`` touch no engine. A host may run ``feed`` and ``collect`` under its lock and the engine's
step between them without, so that a refusal does not wait for a step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from itertools import count

from brim.engine.admission import INTERACTIVE, Pace, Policy, misfit, too_late
from brim.engine.counting import Counting
from brim.engine.engine import Engine, Finish, Produced, Sampling, Step
from brim.engine.entry import Entry, Leaving
from brim.engine.kv_cache import BlockLedger, PrefixIndex, block_hashes
from brim.engine.lifecycle import Delta, End, Ended, Event, Reason, Request
from brim.engine.metrics import Metrics
from brim.engine.partial_blocks import Decoding, PartialBlocks
from brim.engine.room import Room
from brim.engine.step_log import LoggedStep, StepLog
from brim.engine.step_time import StepShape, prefill_pairs

PIECE = Sampling(max_tokens=1, temperature=0, ignore_eos=True)
"""Of a piece: the one token that an engine has to be asked for."""
next_sequence = count().__next__
"""The number of the next sequence, unlike all before, whoever asks: an engine may outlive its scheduler, and takes no number
twice."""


class Scheduler:
    """Policy in front of one engine. One thread at a time may use it."""

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        clock_us: Callable[[], int],
        *,
        metrics: Metrics | None = None,
        step_log: StepLog | None = None,
    ) -> None:
        """Take an engine that nobody else gives sequences to.

        Args:
            engine: without sequences.
            policy: the operator's decisions.
            clock_us: a clock that never goes back.
            metrics: where to count.
            step_log: where to write steps down.

        Raises:
            InputError: the policy does not fit the engine.
        """
        policy.check(engine.limits)
        self._engine, self._policy, self._clock_us = engine, policy, clock_us
        self._limits = engine.limits
        self.metrics = Metrics() if metrics is None else metrics
        self.step_log = StepLog() if step_log is None else step_log
        self._counting = Counting(self.metrics, self.step_log, self._limits)
        self._ledger = BlockLedger(self._limits.total_blocks, self._limits.block_tokens)
        self._forget_prefixes()
        self._pace = Pace()
        self._entries: dict[str, Entry] = {}
        self._room = Room(policy, self._limits, self._ledger)
        self._by_sequence: dict[int, Entry] = {}
        self._promised_blocks = self._promised_seats = 0
        self._numbers = 0
        self._planned: dict[str, int] = {}
        self._pairs = 0
        self._shape = StepShape()
        self._fed_us = 0
        self._used_blocks = engine.used_blocks()
        self._draining = False
        self._shut: tuple[Reason, str] | None = None
        self._counting.engine(up=True)
        self._gauges()

    # What a caller does

    def submit(self, request: Request) -> list[Event]:
        """Take a request, or end it at once.

        Returns:
            Its end when it is refused; and the end of another one that gave its place to it.

        Raises:
            ValueError: a living request has the same id.
        """
        if request.id in self._entries:
            raise ValueError(f"request id {request.id!r} is in use")
        now_us = self._clock_us()
        self._room.came(request.kind, now_us)
        entry = Entry(request, self._numbers, now_us, request.tokens, self._hashes(request.tokens))
        self._numbers += 1
        refusal = self._refusal(entry, now_us)
        if refusal is not None:
            return [self._refused(entry, *refusal)]
        events: list[Event] = []
        if self._room.is_full(INTERACTIVE):
            shed = max((e for e in self._room.waiting if e.may_be_shed), key=lambda e: e.number)
            self._room.waiting.remove(shed)
            del self._entries[shed.request.id]
            events.append(
                self._refused(shed, Reason.SHED, "an interactive request took its place in the full waiting room")
            )
        self._entries[request.id] = entry
        self._room.waiting.append(entry)
        self._gauges()
        return events

    def cancel(self, request_id: str) -> list[Event]:
        """A caller went. Harmless when the request has ended or never was.

        Returns:
            The end of the request, when there was one to end.
        """
        return self._end_early(request_id, End.CANCELLED)

    def stop(self, request_id: str) -> list[Event]:
        """A stop string was found in the text: end the request as complete. Harmless when it has ended."""
        return self._end_early(request_id, End.STOP)

    def drain(self) -> None:
        """Refuse whatever comes from now on; what is here is finished."""
        self._draining = True

    @property
    def takes(self) -> bool:
        """Whether a request has a chance."""
        return self._shut is None and not self._draining

    def abandon(self, reason: Reason, message: str) -> list[Event]:
        """The engine is lost: end every request as failed, give it nothing more, and refuse what comes for the reason given.

        May be called again with another one.
        """
        self._shut = reason, message
        events: list[Event] = [
            self._ended(entry, End.FAILED, reason=reason, message=message) for entry in list(self._entries.values())
        ]
        for entry in list(self._room.seated):
            self._ledger.release(entry.number)
        for leaving in self._room.leaving.values():
            self._ledger.release(leaving.number)
        self._room.clear()
        self._by_sequence.clear()
        self._entries.clear()
        self._used_blocks = 0
        self._counting.engine(up=False)
        self._gauges()
        return events

    def resume(self) -> None:
        """The engine has been replaced by one of the same limits, which holds nothing: take requests again."""
        self._shut = None
        self._forget_prefixes()
        self._counting.engine_restarted()
        self._counting.engine(up=True)

    # What the owner of the engine does

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._entries or self._room.leaving)

    def step(self) -> list[Event]:
        """Feed the engine, step it, collect."""
        events = self.feed()
        return events + self.collect(self._engine.step())

    def feed(self) -> list[Event]:
        """Before a step: tell the engine who left, and give it what to prefill.

        Returns:
            Ends of those who waited too long, whose deadline passed, or whom the engine would not take.
        """
        self._fed_us = now_us = self._clock_us()
        events: list[Event] = list(self._expired(now_us))
        self._planned, self._pairs = {}, 0
        events += self._plan(now_us)
        events += self._overdue(now_us)
        decoding = [entry for entry in self._room.seated if entry.decoding]
        self._shape = StepShape(
            len(decoding),
            sum(self._planned.values()),
            sum(len(entry.request.tokens) + len(entry.text) for entry in decoding),
            self._pairs,
        )
        for sequence, leaving in self._room.leaving.items():
            if not leaving.told and not self._partial.is_cut(sequence):
                self._engine.cancel(sequence)
                leaving.told = True
        self._gauges()
        return events

    def collect(self, step: Step) -> list[Event]:
        """After a step: what it produced, and ends."""
        now_us = self._clock_us()
        self._pace.saw_step(step.took_us)
        for sequence, leaving in list(self._room.leaving.items()):
            if leaving.told:
                self._ledger.release(leaving.number)
                del self._room.leaving[sequence]
        self._partial.stepped([produced.sequence_id for produced in step.produced])
        events: list[Event] = []
        decoded: list[str] = []
        first: list[str] = []
        for produced in step.produced:
            entry = self._by_sequence.get(produced.sequence_id)
            if entry is None:
                self._left_by_itself(produced)
            elif entry.piece_tokens:
                events += self._piece_done(entry, produced)
            else:
                (decoded if entry.decoding else first).append(entry.request.id)
                events += self._produced(entry, produced, now_us)
        ended = [event.request_id for event in events if isinstance(event, Ended)]
        self._counting.stepped(
            LoggedStep(
                self.step_log.steps,
                self._fed_us,
                step.took_us,
                self._planned,
                tuple(decoded),
                tuple(first),
                tuple(ended),
                self._shape,
                step.used_blocks,
                self._ledger.used_blocks,
            )
        )
        self._used_blocks = step.used_blocks
        self._gauges()
        return events

    # Admission

    def _refusal(self, entry: Entry, now_us: int) -> tuple[Reason, str] | None:
        request = entry.request
        if self._draining:
            return Reason.DRAINING, "the server is going down"
        if self._shut is not None:
            return self._shut
        misfits = misfit(request, self._limits)
        if misfits is not None:
            return misfits
        if self._room.is_full(request.kind) and not (
            request.kind is INTERACTIVE and any(e.may_be_shed for e in self._room.waiting)
        ):
            named = "max_waiting" if self._room.is_full(INTERACTIVE) else "max_waiting_batch"
            return Reason.ROOM_FULL, f"every seat is taken, and so is every place to wait for one ({named})"
        wait_us, first_us = self._expectation(entry, now_us)
        late = self._too_late(entry, now_us, wait_us, first_us)
        return None if late is None else (Reason.DEADLINE, late)

    def _too_late(self, entry: Entry, now_us: int, waited_us: float, first_token_us: float) -> str | None:
        within_us = self._policy.first_token_within_us.get(entry.request.kind)
        prefill_us = self._pace.prefill_us(entry.remaining_tokens, self._chunk_tokens(0))
        return too_late(entry.request, now_us, waited_us, prefill_us, first_token_us, within_us)

    def _expectation(self, entry: Entry, now_us: int) -> tuple[float, float]:
        """Expected time to a newcomer's seat, and to its first token."""
        self._look_up(entry)
        rank = self._room.rank(entry)
        ahead = [e for e in self._room.waiting if self._room.rank(e) < rank]
        taken = len(self._room.seated) + len(self._room.leaving)
        free = max(0, self._room.free_seats() - self._room.spare_seats(entry, now_us))
        if self._ledger.need(entry.request.most_tokens) > self._ledger.free_blocks or self._room.share_is_taken(entry):
            free = 0
        wait_us = self._pace.seat_wait_us(len(ahead), free, taken)
        tokens = sum(
            e.remaining_tokens
            for e in (*ahead, *(e for e in self._room.seated if not e.decoding and self._room.rank(e) < rank))
        )
        return wait_us, wait_us + self._pace.prefill_us(tokens + entry.remaining_tokens, self._chunk_tokens(0))

    def _expired(self, now_us: int) -> Iterator[Ended]:
        """Ends of those whose deadline has passed."""
        for entry in list(self._entries.values()):
            deadline_us = entry.request.deadline_us
            if deadline_us is None or now_us < deadline_us:
                continue
            self._let_go(entry)
            if entry.began:
                yield self._ended(entry, End.EXPIRED, message=_PASSED)
            else:
                del self._entries[entry.request.id]
                yield self._refused(entry, Reason.DEADLINE, _PASSED)

    def _overdue(self, now_us: int) -> Iterator[Ended]:
        """Ends of those who have waited too long, and have no seat now either."""
        for entry in [e for e in self._room.waiting if not e.began]:
            late = self._too_late(entry, now_us, now_us - entry.arrived_us, 0)
            if late is not None:
                self._room.waiting.remove(entry)
                del self._entries[entry.request.id]
                yield self._refused(entry, Reason.DEADLINE, late)

    # The plan of a step

    def _chunk_tokens(self, decoding: int) -> int:
        """Prompt tokens that a step may run beside so many decodes."""
        left = self._limits.step_tokens - decoding
        return left if self._policy.chunk_tokens is None else min(left, self._policy.chunk_tokens)

    def _plan(self, now_us: int) -> Iterator[Ended]:
        """Give the engine this step's prefills. ``_promised_*`` are what those who could not go yet will get next."""
        self._promised_blocks = self._promised_seats = 0
        budget = self._chunk_tokens(sum(1 for e in self._room.seated if e.decoding))
        budget -= sum(self._engine_backlog(e) for e in self._room.seated)
        oldest = next((e for e in self._room.seated if e.sequence is None), None)
        kept = 0 if oldest is None else max(self._limits.block_tokens, int(budget * self._policy.long_share))
        for entry in self._room.waiting:
            self._look_up(entry)
        candidates = [e for e in self._room.seated if e.sequence is None] + self._room.waiting
        decoding = [(e.request.tokens, e.engine_text) for e in self._room.seated if e.decoding]
        self._room.find_aged(now_us)
        head_blocked = False
        for entry in sorted(candidates, key=self._room.rank):
            if entry is oldest:
                kept = 0
            if budget <= kept:
                continue
            if entry.seated_us is None and (head_blocked or not self._seat(entry, now_us)):
                head_blocked = head_blocked or entry.number in self._room.aged
                continue
            budget -= yield from self._prefill(entry, budget - kept, decoding)

    def _engine_backlog(self, entry: Entry) -> int:
        """Prompt tokens of a sequence that the engine did not finish in the step that it was meant for."""
        return 0 if entry.sequence is None or entry.decoding else min(entry.remaining_tokens, self._limits.step_tokens)

    def _seat(self, entry: Entry, now_us: int) -> bool:
        """Give a waiting request a seat and all of its blocks, or see whether preempting can."""
        aged = entry.number in self._room.aged
        if not aged and self._room.share_is_taken(entry):
            return False
        blocks = self._ledger.need(entry.request.most_tokens)
        seats = (
            self._policy.max_sequences
            - len(self._room.seated)
            - len(self._room.leaving)
            - self._room.spare_seats(entry, now_us)
        )
        leaving_blocks = sum(self._ledger.held(leaving.number) for leaving in self._room.leaving.values())
        later_blocks = self._ledger.free_blocks + leaving_blocks - self._promised_blocks
        later_seats = seats + len(self._room.leaving) - self._promised_seats
        if seats > 0 and later_seats > 0 and blocks <= min(self._ledger.free_blocks, later_blocks):
            self._ledger.promise(entry.number, blocks)
            self._room.waiting.remove(entry)
            self._room.seated.append(entry)
            entry.seated_us, entry.by_age = now_us, aged
            self._counting.seated(entry, now_us)
            entry.began = True
            return True
        fits_later = later_seats > 0 and blocks <= later_blocks
        if not fits_later and self._policy.preempts and entry.request.kind is INTERACTIVE:
            victims = self._room.victims(blocks - later_blocks, 1 - later_seats, self._planned)
            for victim in victims:
                self._preempt(victim)
            if victims:
                # Those between two pieces have left already; the others will have after this step.
                return self._seat(entry, now_us)
        if fits_later:
            self._promised_blocks += blocks
            self._promised_seats += 1
        return False

    def _preempt(self, entry: Entry) -> None:
        if entry.decoding:
            self._keep_prefix(entry, last_was_run=False)
        self._let_go(entry)
        entry.preemptions += 1
        entry.seated_us = None
        entry.decoding = False
        entry.cached_tokens = 0
        entry.replay = None
        if entry.text and entry.request.sampling.continues_from_text:
            entry.prompt = (*entry.request.tokens, *entry.text)
            entry.hashes = self._hashes(entry.prompt)
        elif entry.text:
            entry.replay = 0
        self._room.waiting.append(entry)
        self._counting.preempted()

    def _prefill(self, entry: Entry, budget: int, decoding: Sequence[Decoding]) -> Generator[Ended, None, int]:
        """Give the engine the rest of a prompt, or a piece of it.

        Returns:
            Prompt tokens that this adds to the step.
        """
        remaining = entry.remaining_tokens
        end = len(entry.prompt)
        if remaining > budget and self._limits.prefix_cache:
            block = self._limits.block_tokens
            end = (entry.cached_tokens + budget) // block * block
            if end <= entry.cached_tokens:
                return 0
        whole = end == len(entry.prompt)
        tokens, hashes = entry.prompt[:end], entry.hashes[: end // self._limits.block_tokens]
        if not self._partial.may_begin(tokens, hashes, decoding):
            return 0
        sampling = entry.request.sampling if whole else PIECE
        if whole and entry.text and entry.replay is None:
            sampling = replace(sampling, max_tokens=sampling.max_tokens - len(entry.text))
        sequence = next_sequence()
        try:
            self._engine.add(sequence, tokens, sampling)
        except Exception as error:  # noqa: BLE001 - whatever the engine says of one sequence is that request's end alone
            self._let_go(entry)
            yield self._ended(entry, End.FAILED, message=f"the engine did not take the request: {error}")
            return 0
        self._partial.begins(sequence, tokens, hashes, decoding)
        entry.sequence = sequence
        entry.piece_tokens = 0 if whole else end
        self._by_sequence[sequence] = entry
        planned = remaining if whole else end - entry.cached_tokens
        self._planned[entry.request.id] = planned
        self._pairs += prefill_pairs(planned, end - planned)
        return planned

    # What a step produced

    def _left_by_itself(self, produced: Produced) -> None:
        """A sequence that was dropped while the step ran has finished in it, so there is nothing left to cancel."""
        if produced.finish is not None and produced.sequence_id in self._room.leaving:
            self._ledger.release(self._room.leaving.pop(produced.sequence_id).number)

    def _piece_done(self, entry: Entry, produced: Produced) -> Iterator[Event]:
        if produced.finish is None:
            return
        del self._by_sequence[produced.sequence_id]
        end, entry.sequence, entry.piece_tokens = entry.piece_tokens, None, 0
        if produced.finish is Finish.IGNORED:
            self._free(entry)
            yield self._ended(entry, End.FAILED, message=_IGNORED)
            return
        entry.cached_tokens = end
        self._prefixes.touch(entry.hashes[: end // self._limits.block_tokens])

    def _produced(self, entry: Entry, produced: Produced, now_us: int) -> Iterator[Event]:
        request = entry.request
        if not entry.decoding:
            entry.decoding = bool(produced.tokens)
            entry.cached_tokens = len(entry.prompt)
            self._prefixes.touch(entry.hashes)
        new = produced.tokens
        if entry.replay is not None:
            again = new[: len(entry.text) - entry.replay]
            if tuple(entry.text[entry.replay : entry.replay + len(again)]) != again:
                self._let_go(entry)
                yield self._ended(entry, End.FAILED, message=_NOT_REPEATED)
                return
            new = new[len(again) :]
            entry.replay += len(again)
            if entry.replay == len(entry.text):
                entry.replay = None
        if new:
            self._counting.delivered(entry, len(new), now_us)
            entry.first_us = now_us if entry.first_us is None else entry.first_us
            entry.last_us = now_us
            entry.text += new
            yield Delta(request.id, new)
        if produced.finish is None:
            return
        del self._by_sequence[produced.sequence_id]
        entry.sequence = None
        self._keep_prefix(entry, last_was_run=produced.finish is Finish.STOP)
        self._pace.saw_seat(now_us - (entry.seated_us or 0))
        self._free(entry)
        if produced.finish is Finish.IGNORED:
            yield self._ended(entry, End.FAILED, message=_IGNORED)
            return
        self._counting.completed(entry, now_us)
        yield self._ended(entry, End(produced.finish.value))

    # Ends

    def _end_early(self, request_id: str, end: End) -> list[Event]:
        entry = self._entries.get(request_id)
        if entry is None:
            return []
        self._let_go(entry)
        if end is End.STOP:
            self._counting.completed(entry, self._clock_us())
        event = self._ended(entry, end)
        self._gauges()
        return [event]

    def _let_go(self, entry: Entry) -> None:
        """Take a request out of the room or off its seat. What the engine runs for it keeps blocks and seat until it is out."""
        if entry.seated_us is None:
            self._room.waiting.remove(entry)
        elif entry.sequence is None:
            self._free(entry)
        else:
            self._room.seated.remove(entry)
            del self._by_sequence[entry.sequence]
            self._room.leaving[entry.sequence] = Leaving(entry.number)
            if not entry.piece_tokens:
                for tokens in (entry.engine_tokens, entry.engine_tokens[:-1]):
                    self._partial.ends(tokens, self._hashes(tokens))
            entry.sequence, entry.piece_tokens = None, 0

    def _free(self, entry: Entry) -> None:
        self._room.seated.remove(entry)
        self._ledger.release(entry.number)

    def _ended(self, entry: Entry, end: End, *, reason: Reason | None = None, message: str = "") -> Ended:
        del self._entries[entry.request.id]
        self._counting.ended(end)
        return Ended(entry.request.id, end, len(entry.text), reason, message)

    def _refused(self, entry: Entry, reason: Reason, message: str) -> Ended:
        self._counting.ended(End.REFUSED, reason)
        return Ended(entry.request.id, End.REFUSED, reason=reason, message=message)

    # Estimates

    def _hashes(self, tokens: tuple[int, ...]) -> list[int]:
        return block_hashes(tokens, self._limits.block_tokens) if self._limits.prefix_cache else []

    def _forget_prefixes(self) -> None:
        """The engine's prefix cache is empty, or it has none."""
        findable = self._limits.total_blocks if self._limits.prefix_cache else 0
        self._prefixes = PrefixIndex(findable)
        self._partial = PartialBlocks(findable, self._limits.block_tokens)

    def _look_up(self, entry: Entry) -> None:
        """How much of a waiting prompt the engine probably has; the last token is always run."""
        cached = self._prefixes.cached_blocks(entry.hashes) * self._limits.block_tokens
        entry.cached_tokens = min(cached, len(entry.prompt) - 1)

    def _keep_prefix(self, entry: Entry, *, last_was_run: bool) -> None:
        """The engine keeps prompt and text findable, but for a last token that it drew and never ran. Of the prompt it is known."""
        tokens = entry.engine_tokens if last_was_run else entry.engine_tokens[:-1]
        hashes = self._hashes(tokens)
        self._partial.ends(tokens, hashes)
        self._prefixes.touch(hashes[len(entry.hashes) :])

    def _gauges(self) -> None:
        self._counting.gauges(
            len(self._room.seated), len(self._room.waiting), self._used_blocks, self._ledger.used_blocks
        )


_PASSED = "the request's deadline has passed"
_IGNORED = "the engine ran out of KV blocks for the request, which admission should have prevented: this is a fault of the server"
_NOT_REPEATED = (
    "the request was preempted, and the engine did not produce the same text again with the same seed: "
    "ended, for the text would have changed in the middle"
)
