"""Memories of a learner: stored samples (episodic) and averaged weights (semantic)."""

from perdure.memory.episodic import EpisodicMemory as EpisodicMemory
from perdure.memory.exemplars import ExemplarSet as ExemplarSet
from perdure.memory.exemplars import NearestMeanClassifier as NearestMeanClassifier
from perdure.memory.gradient_buffer import GradientBuffer as GradientBuffer
from perdure.memory.reservoir import AgeHistogram as AgeHistogram
from perdure.memory.reservoir import AgeTrackingReservoir as AgeTrackingReservoir
from perdure.memory.reservoir import Reservoir as Reservoir
from perdure.memory.semantic import SemanticMemory as SemanticMemory
from perdure.memory.semantic import Update as Update
from perdure.memory.storage import Storage as Storage
from perdure.memory.task_buffer import BalancedTaskBuffer as BalancedTaskBuffer
from perdure.memory.task_buffer import TaskBuffer as TaskBuffer
