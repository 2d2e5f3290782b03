"""Drills: the alerts, each with the real fault that it is for, and the cure that its runbook names."""

from __future__ import annotations

from collections.abc import Sequence

from tests.drills.of_lists import LISTS
from tests.drills.of_processes import PROCESSES
from tests.drills.of_reading import READING
from tests.drills.of_storage import STORAGE
from tests.drills.of_strangers import STRANGERS
from tests.drills.of_work import WORK
from tests.drills.scene import Drill

DRILLS: Sequence[Drill] = (*PROCESSES, *READING, *LISTS, *WORK, *STORAGE, *STRANGERS)
