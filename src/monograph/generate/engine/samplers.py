"""The sessions of a generator: one for each way to choose tokens, the last few of them kept."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from monograph.config import Config
from monograph.generate.check.parts import RewrittenSource
from monograph.generate.discover.folder import Settings
from monograph.generate.discover.sizes import weight_bytes
from monograph.generate.rewrite.loop import LoopModel, build_loop
from monograph.generate.rewrite.sampling import SamplerShape
from monograph.generate.rewrite.step import DecodeStep, build_step
from monograph.generate.stats import add_up
from monograph.runtime.progress import Progress
from monograph.session import Session

KEPT = 4
"""How many ways to choose tokens are kept, the one at hand among them."""
KEPT_BYTES = 2 << 30
"""What the weights of those that are not at hand may take together: each has its own."""


@dataclass
class Sampler:
    """A step that chooses tokens in one way, with what runs it."""

    step: DecodeStep
    session: Session
    loop: tuple[LoopModel, Session] | None = None

    def sessions(self) -> list[Session]:
        return [self.session, *([] if self.loop is None else [self.loop[1]])]

    def held_bytes(self) -> int:
        """About what its executables hold of weights: one copy each, on a GPU one in all."""
        copies = sum(
            max(1, int(s.stats["compiled"])) if s.gpu is None else 1 for s in self.sessions()
        )
        return copies * weight_bytes(self.step.model)


class Samplers:
    """Samplers by what decides their graphs. The one that was unused longest goes first."""

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
        """What samplers did that were let go."""

    def choose(self, shape: SamplerShape) -> Sampler:
        """The sampler of this shape, made where it is not at hand."""
        if shape not in self._kept:
            step = build_step(self._settings, self._maximum, shape, self._logits)
            source = RewrittenSource(step.model, step.directory)
            session = Session(source, self._config, {}, dict(step.donate), self._progress)
            self._kept[shape] = Sampler(step, session)
        self._kept.move_to_end(shape)
        self._let_go()
        return self._kept[shape]

    def _let_go(self) -> None:
        """Forgets samplers until those that are left fit, with all their memory."""
        *others, _ = self._kept.values()
        held = [s.held_bytes() for s in others]
        while held and (len(held) >= KEPT or sum(held) > KEPT_BYTES):
            _, old = self._kept.popitem(last=False)
            self._before = [add_up([*self._before, *(s.stats for s in old.sessions())])]
            del held[0]

    def loop(self, sampler: Sampler) -> tuple[LoopModel, Session]:
        """What makes many tokens of a sampler in one launch."""
        if sampler.loop is None:
            made = build_loop(sampler.step)
            source = RewrittenSource(made.model, made.directory)
            session = Session(source, self._config, {}, made.donate, self._progress)
            sampler.loop = made, session
        return sampler.loop

    def stats(self) -> dict[str, Any]:
        """What all sessions have done so far, as `Session.stats` has it."""
        sessions = [s for sampler in self._kept.values() for s in sampler.sessions()]
        return add_up([*self._before, *(s.stats for s in sessions)])
