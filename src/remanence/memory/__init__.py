"""What a learner remembers: stored samples (episodic) and averaged weights (semantic)."""

from remanence.memory.dated import DatedReservoir as DatedReservoir
from remanence.memory.reservoir import Reservoir as Reservoir
from remanence.memory.semantic import SemanticMemory as SemanticMemory
