"""The sessions of a generator: one for each shape of sampling; the last few are kept."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from monograph.config import Config
from monograph.generate.check import RewrittenSource
from monograph.generate.discover.folder import Settings
from monograph.generate.rewrite.loop import LoopModel, build_loop
from monograph.generate.rewrite.sampling import SamplerShape
from monograph.generate.rewrite.step import DecodeStep, build_step
from monograph.generate.stats import add_up, weight_bytes
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
