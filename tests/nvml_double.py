"""NVML's answers about cards that this machine does not have."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pynvml

GIB = 2**30
PCI = {"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030000\n"}
LOADED = {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01\n"}


@dataclass
class Card:
    name: str
    uuid: str
    capability: tuple[int, int] = (8, 6)
    memory: int = 12 * GIB
    error: int | None = None
    mig: bool = False
    instances: tuple[Card, ...] = ()


@dataclass
class Nvml:
    """Answers like pynvml, with the errors of pynvml."""

    cards: list[Card] = field(default_factory=list)
    driver: str = "550.163.01"
    broken: int | None = None
    open: int = 0
    NVMLError = pynvml.NVMLError

    def nvmlInit(self) -> None:
        self._fail(self.broken)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        self._fail(self.cards[index].error)
        return self.cards[index]

    def nvmlDeviceGetCudaComputeCapability(self, card: Card) -> tuple[int, int]:
        return card.capability

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> SimpleNamespace:
        return SimpleNamespace(total=card.memory, free=card.memory - GIB)

    def nvmlDeviceGetName(self, card: Card) -> str:
        return card.name

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    def nvmlDeviceGetMigMode(self, card: Card) -> tuple[int, int]:
        if card.capability < (8, 0):
            self._fail(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return (int(card.mig), int(card.mig))

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> Card:
        if index >= len(card.instances):
            self._fail(pynvml.NVML_ERROR_NOT_FOUND)
        return card.instances[index]

    @staticmethod
    def _fail(code: int | None) -> None:
        if code is not None:
            raise pynvml.NVMLError(code)


RTX = Card("NVIDIA GeForce RTX 3060", "GPU-aaaa1111")
GTX = Card("NVIDIA GeForce GTX 1080", "GPU-bbbb2222", (6, 1), 8 * GIB)
T4 = Card("Tesla T4", "GPU-cccc3333", (7, 5), 15 * GIB)
SLICES = (
    Card("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "MIG-1111", (8, 0), 20 * GIB),
    Card("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG-2222", (8, 0), 5 * GIB),
)
A100 = Card("NVIDIA A100-SXM4-40GB", "GPU-dddd4444", (8, 0), 40 * GIB, mig=True, instances=SLICES)
