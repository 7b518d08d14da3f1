"""All kinds of results that the report shows, in the order of the page."""

from types import ModuleType

from evaluate.sections import attention, comparison, dispersion, probe, retrieval, scaling, zero_shot

SECTIONS: tuple[tuple[ModuleType, str], ...] = (  # with the section's heading
    (zero_shot, "Accuracy"),
    (comparison, "Differences"),
    (retrieval, "Retrieval"),
    (probe, "Classifiers on frozen features"),
    (scaling, "Loss over size"),
    (dispersion, "How the weight of one key falls as keys become more"),
    (attention, "Where each layer looks"),
)
