"""The sessions of a generator: one for each shape of sampling, and steps that run ahead.

The last few samplers are kept. On a GPU the next step can read a generated token before the host
knows it. So the host prepares a step while the device runs the one before, and the device does not
wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from monograph.config import Config
from monograph.generate.check import RewrittenSource
from monograph.generate.discover.folder import Settings
from monograph.generate.rewrite.loop import LoopModel, build_loop
from monograph.generate.rewrite.sampling import SamplerShape
from monograph.generate.rewrite.step import DecodeStep, build_step
from monograph.generate.stats import add_up, weight_bytes
from monograph.runtime.pending import Pending
from monograph.runtime.progress import Progress
from monograph.session import Session

KEPT = 4
"""The number of samplers that are kept, including the current one."""
KEPT_BYTES = 2 << 30
"""The most bytes of weights of all samplers but the current one: each has its own copy."""


@dataclass
class Sampler:
    """A step with one shape of sampling, and the sessions that run it."""

    step: DecodeStep
    session: Session
    loop: tuple[LoopModel, Session] | None = None

    def sessions(self) -> list[Session]:
        return [self.session, *([] if self.loop is None else [self.loop[1]])]

    def held_bytes(self) -> int:
        """Estimate the bytes of weights of its executables: one copy each; on a GPU one in all."""
        copies = sum(
            max(1, int(s.stats["compiled"])) if s.gpu is None else 1 for s in self.sessions()
        )
        return copies * weight_bytes(self.step.model)


class Samplers:
    """Samplers by shape. The least recently used one is dropped first."""

    def __init__(
        self,
        settings: Settings,
        config: Config,
        maximum: int,
        logits: bool,
        progress: Progress | None,
    ) -> None:
        self._settings = settings
        self._config = config
        self._maximum = maximum
        self._logits = logits
        self._progress = progress
        self._kept: OrderedDict[SamplerShape, Sampler] = OrderedDict()
        self._before: list[dict[str, Any]] = []
        """The statistics of dropped samplers."""

    def choose(self, shape: SamplerShape) -> Sampler:
        """Return the sampler of this shape; build it if needed."""
        if shape not in self._kept:
            step = build_step(self._settings, self._maximum, shape, self._logits)
            source = RewrittenSource(step.model, step.directory)
            session = Session(source, self._config, {}, dict(step.donate), self._progress)
            self._kept[shape] = Sampler(step, session)
        self._kept.move_to_end(shape)
        self._let_go()
        return self._kept[shape]

    def _let_go(self) -> None:
        """Drop samplers until the rest fits the limits, with all their memory."""
        *others, _ = self._kept.values()
        held = [s.held_bytes() for s in others]
        while held and (len(held) >= KEPT or sum(held) > KEPT_BYTES):
            _, old = self._kept.popitem(last=False)
            self._before = [add_up([*self._before, *(s.stats for s in old.sessions())])]
            del held[0]

    def loop(self, sampler: Sampler) -> tuple[LoopModel, Session]:
        """Return the loop that generates several tokens of a sampler in one launch."""
        if sampler.loop is None:
            made = build_loop(sampler.step)
            source = RewrittenSource(made.model, made.directory)
            session = Session(source, self._config, {}, made.donate, self._progress)
            sampler.loop = made, session
        return sampler.loop

    def stats(self) -> dict[str, Any]:
        """The sum of the statistics of all sessions, as `Session.stats`."""
        sessions = [s for sampler in self._kept.values() for s in sampler.sessions()]
        return add_up([*self._before, *(s.stats for s in sessions)])


@dataclass(frozen=True)
class PipelinedStep:
    """A step that was started, and its arguments."""

    session: Session
    tokens: Any
    """The generated tokens that it was fed."""
    data: Mapping[str, Any]
    """The data of its sampler."""
    pending: Pending
    mark: Any
    """The mark after it on the device; None if it ended when it was started."""

    def follows(self, session: Session, tokens: Any, data: Mapping[str, Any]) -> bool:
        """Return True if the step that would be started now is this one."""
        return self.session is session and self.tokens is tokens and self.data is data

    def enqueued(self) -> dict[str, Any] | None:
        """The outputs by name, for the next step; None if they are not known yet."""
        made = self.pending.enqueued
        return None if made is None else self._named(made)

    def result(self) -> dict[str, Any]:
        """Return the outputs by name, once the step has ended."""
        return self._named(self.pending.result())

    def settle(self) -> None:
        """Wait for a step that is no longer needed, so that its memory may be freed.

        It wrote after the end of the sequences, where the next step writes again.
        """
        with suppress(Exception):  # a failed device fails the next step too
            self.pending.result()
            if self.mark is not None:
                self.mark.synchronize()

    def _named(self, made: list[Any]) -> dict[str, Any]:
        return dict(zip((p.name for p in self.session.outputs), made, strict=True))
