"""ONNX Runtime's threads against the cores: which counts are worth a measurement, and which settings use too many."""

from __future__ import annotations

from dataclasses import dataclass

from brim.runtime.padding import PaddingCost
from brim.tune.setting import Setting


@dataclass(frozen=True, slots=True)
class Threads:
    """How the instances of a service use the cores.

    Attributes:
        own: ``runtime.threads`` of the service file; 0: the cores are shared by the instances (``brim.runtime.adapter``).
        cores: that the server may use.
    """

    own: int
    cores: int

    def of(self, setting: Setting) -> int:
        """Threads of one instance under a setting."""
        wanted = self.own if setting.threads is None else setting.threads
        return wanted or max(1, self.cores // setting.instances)

    def fits(self, setting: Setting) -> bool:
        """Whether all instances together have no more threads than there are cores."""
        return setting.instances * self.of(setting) <= self.cores

    def counts(self, current: Setting) -> list[int]:
        """Counts to measure: one thread, half of the cores, all of them, and what the service has now; none above the cores,
        except the last."""
        return sorted({1, max(1, self.cores // 2), self.cores, self.of(current)})


@dataclass(frozen=True, slots=True)
class Runtimes:
    """The ways to run a batch that settings may have.

    Attributes:
        threads: how instances use the cores; None where the model has no such knob, or nothing was measured.
        measured: counts of threads whose batch times are known.
        padding: the cutting that all candidates have; None: as the service file has it.
    """

    threads: Threads | None = None
    measured: tuple[int, ...] = ()
    padding: PaddingCost | None = None

    def threads_for(self, instances: int) -> list[int | None]:
        """Values of ``Setting.threads`` with so many instances: what the service has, and the other measured counts."""
        if self.threads is None:
            return [None]
        own = self.threads.of(Setting(instances=instances))
        return [None, *(count for count in self.measured if count != own)]

    def allow(self, setting: Setting) -> bool:
        """Whether the batch time of a setting is known, and its threads are no more than the cores."""
        if self.threads is None:
            return True
        return self.threads.of(setting) in self.measured and self.threads.fits(setting)


AS_IT_IS = Runtimes()
"""Nothing about how a batch is run is changed."""
