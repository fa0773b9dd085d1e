"""Moreira et al. (2026): a sensor's packets beside noisy neighbours of four kinds, at a high and a low QFI."""

from __future__ import annotations

from functools import partial

from slicepilot.training.studies.study import Study

from .findings import FINDINGS
from .pictures import pictures
from .played import NO_CONTROL, measure, simulate
from .published import rows
from .release import read_release

STUDY = Study(
    name="moreira",
    title="Noisy neighbours of a sensor",
    citation='R. Moreira, L. F. Rodrigues Moreira, T. C. Carvalho, F. de Oliveira Silva, "Noisy Neighbor Influence in '
    'the Data Plane of Beyond 5G Networks", arXiv:2601.12106, 2026',
    question="Whether traffic of other slices changes the time that a user plane takes for a sensor's packets, and "
    "whether a QFI of higher priority protects them.",
    rows=list(rows()),
    findings=FINDINGS,  # no orders: four classes are too few for a rank correlation to say anything
    simulate=simulate,
    measure=measure,
    release=read_release,
    pictures=partial(pictures, NO_CONTROL),
)
