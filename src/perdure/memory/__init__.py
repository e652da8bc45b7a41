"""What a learner remembers: stored samples (episodic) and averaged weights (semantic)."""

from perdure.memory.dated import DatedReservoir as DatedReservoir
from perdure.memory.reservoir import Reservoir as Reservoir
from perdure.memory.semantic import SemanticMemory as SemanticMemory
