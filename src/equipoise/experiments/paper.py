"""The numbers printed in the paper, which the experiments are compared with."""

import math
from typing import Literal, NamedTuple

__all__ = [
    "HYPERVOLUMES",
    "MEANS",
    "OVERALL",
    "PREFERENCES",
    "RATIOS",
    "SCORES",
    "SECONDS",
    "Preset",
    "Score",
    "Scores",
    "SomeScores",
    "known",
    "standard_error",
]  # fmt: skip


Preset = Literal["published", "text"]
"""Settings: those that produced the paper's tables, or those that its text gives."""


def standard_error(std: float, seeds: int) -> float:
    """The standard error of a mean, from the population standard deviation over the seeds."""
    return std / math.sqrt(max(1, seeds - 1))


class Score(NamedTuple):
    """A mean over the seeds with its standard deviation."""

    mean: float
    std: float

    def text(self, digits: int = 3, *, signed: bool = False) -> str:
        """Both as text; a deviation of 0, as of a single run, is left out."""
        mean = f"{self.mean:{'+' if signed else ''}.{digits}f}"
        return mean if self.std == 0 else f"{mean}±{self.std:.{digits}f}"


class Scores(NamedTuple):
    """The three metrics of tab:3."""

    accuracy: Score
    agnostic_loss: Score
    accuracy_parity: Score


class SomeScores(NamedTuple):
    """The same metrics in a table that omits some of them: those are None."""

    accuracy: Score | None
    agnostic_loss: Score | None
    accuracy_parity: Score | None


def _pairs(*numbers: float) -> tuple[Score, ...]:
    return tuple(Score(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True))


def _scores(*numbers: float) -> Scores:
    return Scores(*_pairs(*numbers))


SCORES: dict[str, dict[str, Scores]] = {
    "mnist-rotation": {
        "LS": _scores(92.450, 0.234, 0.639, 0.028, 4.796, 0.272),
        "qFFL": _scores(91.896, 0.226, 0.675, 0.027, 5.021, 0.262),
        "PropFair": _scores(90.622, 0.194, 0.742, 0.025, 5.454, 0.152),
        "FedMGDA+": _scores(92.416, 0.210, 0.322, 0.013, 1.153, 0.168),
        "FedFV": _scores(94.501, 0.179, 0.302, 0.027, 1.646, 0.335),
        "TCH": _scores(92.579, 0.270, 0.342, 0.027, 1.397, 0.292),
        "STCH": _scores(92.977, 0.230, 0.409, 0.027, 2.385, 0.247),
        "EPO": _scores(92.604, 0.302, 0.350, 0.029, 1.467, 0.288),
        "FERERO": _scores(92.443, 0.232, 0.640, 0.028, 4.807, 0.271),
        "ExcessMTL": _scores(88.566, 0.279, 0.503, 0.013, 1.637, 0.106),
        "AdaExcessMTL": _scores(92.520, 0.235, 0.326, 0.013, 1.117, 0.148),
        "OMDgd-TCH": _scores(88.597, 0.241, 0.514, 0.024, 1.658, 0.257),
        "AdaOMDgd-TCH": _scores(92.593, 0.236, 0.341, 0.019, 1.296, 0.211),
        "OMDeg-TCH": _scores(88.664, 0.220, 0.518, 0.026, 1.680, 0.238),
        "AdaOMDeg-TCH": _scores(92.583, 0.185, 0.334, 0.019, 1.201, 0.227),
    },
    "mnist-class2": {
        "LS": _scores(92.330, 1.429, 0.534, 0.106, 4.574, 1.469),
        "qFFL": _scores(90.264, 1.714, 0.659, 0.118, 6.025, 1.696),
        "PropFair": _scores(91.274, 1.505, 0.573, 0.105, 4.987, 1.620),
        "FedMGDA+": _scores(92.236, 1.405, 0.386, 0.055, 2.629, 0.489),
        "FedFV": _scores(93.675, 1.331, 0.397, 0.094, 3.318, 0.868),
        "TCH": _scores(93.250, 1.468, 0.409, 0.067, 3.685, 0.982),
        "STCH": _scores(92.592, 1.558, 0.477, 0.098, 3.989, 1.201),
        "EPO": _scores(91.866, 2.986, 0.517, 0.152, 4.273, 1.772),
        "FERERO": _scores(92.301, 1.467, 0.545, 0.111, 4.700, 1.500),
        "ExcessMTL": _scores(91.354, 1.368, 0.489, 0.047, 3.530, 0.673),
        "AdaExcessMTL": _scores(92.435, 1.514, 0.404, 0.066, 2.753, 0.523),
        "OMDgd-TCH": _scores(90.965, 1.502, 0.549, 0.092, 4.373, 1.027),
        "AdaOMDgd-TCH": _scores(92.387, 1.616, 0.424, 0.099, 3.153, 0.817),
        "OMDeg-TCH": _scores(90.133, 1.850, 0.569, 0.111, 4.563, 1.095),
        "AdaOMDeg-TCH": _scores(92.209, 1.580, 0.435, 0.105, 3.084, 0.865),
    },
    "mnist-class5": {
        "LS": _scores(93.907, 0.418, 0.282, 0.034, 1.559, 0.378),
        "qFFL": _scores(93.008, 0.514, 0.320, 0.034, 1.752, 0.431),
        "PropFair": _scores(92.865, 0.462, 0.328, 0.030, 1.727, 0.424),
        "FedMGDA+": _scores(93.944, 0.480, 0.267, 0.027, 1.175, 0.244),
        "FedFV": _scores(95.017, 0.515, 0.231, 0.032, 1.287, 0.306),
        "TCH": _scores(94.690, 0.317, 0.250, 0.045, 1.518, 0.375),
        "STCH": _scores(94.140, 0.405, 0.272, 0.032, 1.360, 0.335),
        "EPO": _scores(93.402, 0.942, 0.304, 0.047, 1.910, 0.484),
        "FERERO": _scores(93.891, 0.421, 0.283, 0.034, 1.564, 0.403),
        "ExcessMTL": _scores(92.424, 0.460, 0.342, 0.022, 1.578, 0.443),
        "AdaExcessMTL": _scores(94.063, 0.444, 0.264, 0.031, 1.205, 0.268),
        "OMDgd-TCH": _scores(92.256, 0.501, 0.349, 0.025, 1.733, 0.445),
        "AdaOMDgd-TCH": _scores(94.239, 0.440, 0.263, 0.033, 1.193, 0.280),
        "OMDeg-TCH": _scores(92.261, 0.505, 0.352, 0.028, 1.799, 0.482),
        "AdaOMDeg-TCH": _scores(94.021, 0.432, 0.275, 0.032, 1.351, 0.371),
    },
    "cifar-rotation": {
        "LS": _scores(66.269, 0.541, 1.260, 0.044, 6.012, 0.596),
        "qFFL": _scores(61.514, 0.450, 1.314, 0.041, 5.451, 0.514),
        "PropFair": _scores(63.108, 0.705, 1.286, 0.044, 5.312, 0.385),
        "FedMGDA+": _scores(66.321, 0.264, 1.197, 0.035, 4.632, 0.430),
        "FedFV": _scores(66.242, 0.475, 1.201, 0.038, 4.668, 0.581),
        "TCH": _scores(62.556, 1.546, 1.266, 0.066, 4.727, 1.099),
        "STCH": _scores(66.320, 0.403, 1.219, 0.043, 4.997, 0.712),
        "EPO": _scores(61.380, 2.680, 1.293, 0.062, 4.731, 0.928),
        "FERERO": _scores(66.368, 0.355, 1.259, 0.040, 5.922, 0.665),
        "ExcessMTL": _scores(59.322, 0.520, 1.256, 0.028, 2.795, 0.332),
        "AdaExcessMTL": _scores(66.211, 0.412, 1.227, 0.041, 5.615, 0.745),
        "OMDgd-TCH": _scores(59.244, 0.489, 1.239, 0.029, 2.429, 0.531),
        "AdaOMDgd-TCH": _scores(66.218, 0.467, 1.148, 0.037, 3.592, 0.487),
        "OMDeg-TCH": _scores(59.273, 0.443, 1.254, 0.033, 2.660, 0.549),
        "AdaOMDeg-TCH": _scores(65.885, 0.610, 1.156, 0.045, 3.688, 0.646),
    },
    "cifar-class2": {
        "LS": _scores(38.925, 2.325, 2.477, 0.256, 21.801, 5.071),
        "qFFL": _scores(34.995, 2.658, 2.584, 0.255, 23.085, 5.014),
        "PropFair": _scores(35.505, 2.107, 2.486, 0.215, 22.642, 4.907),
        "FedMGDA+": _scores(38.560, 2.974, 2.148, 0.089, 14.227, 2.428),
        "FedFV": _scores(39.015, 3.170, 2.394, 0.197, 19.289, 4.173),
        "TCH": _scores(20.935, 6.355, 4.378, 0.387, 27.199, 3.398),
        "STCH": _scores(35.380, 3.949, 2.386, 0.228, 19.139, 6.063),
        "EPO": _scores(20.510, 7.571, 4.364, 0.641, 24.116, 4.796),
        "FERERO": _scores(38.700, 3.236, 2.468, 0.260, 21.922, 4.676),
        "ExcessMTL": _scores(35.240, 2.402, 2.526, 0.294, 22.256, 5.647),
        "AdaExcessMTL": _scores(38.330, 2.893, 2.434, 0.277, 21.518, 5.055),
        "OMDgd-TCH": _scores(31.080, 4.816, 2.515, 0.269, 20.600, 6.157),
        "AdaOMDgd-TCH": _scores(36.765, 3.475, 2.372, 0.239, 18.422, 5.435),
        "OMDeg-TCH": _scores(34.865, 2.422, 2.534, 0.244, 22.045, 5.490),
        "AdaOMDeg-TCH": _scores(36.755, 3.373, 2.388, 0.259, 18.933, 5.478),
    },
    "cifar-class5": {
        "LS": _scores(55.626, 1.606, 1.705, 0.125, 8.610, 1.751),
        "qFFL": _scores(49.316, 1.859, 1.856, 0.147, 9.614, 2.169),
        "PropFair": _scores(53.794, 1.530, 1.740, 0.137, 9.037, 1.697),
        "FedMGDA+": _scores(56.174, 1.339, 1.596, 0.143, 6.862, 1.842),
        "FedFV": _scores(55.746, 1.448, 1.662, 0.098, 7.609, 1.284),
        "TCH": _scores(36.242, 4.324, 3.748, 0.279, 16.141, 2.355),
        "STCH": _scores(55.328, 1.656, 1.622, 0.048, 7.311, 1.253),
        "EPO": _scores(37.458, 2.333, 3.138, 0.421, 14.602, 1.629),
        "FERERO": _scores(55.662, 1.277, 1.729, 0.157, 8.854, 2.064),
        "ExcessMTL": _scores(48.142, 1.862, 1.870, 0.136, 9.715, 2.075),
        "AdaExcessMTL": _scores(55.766, 1.753, 1.705, 0.170, 8.354, 2.072),
        "OMDgd-TCH": _scores(47.960, 1.874, 1.832, 0.080, 8.787, 1.413),
        "AdaOMDgd-TCH": _scores(53.422, 1.402, 1.664, 0.065, 6.823, 1.504),
        "OMDeg-TCH": _scores(48.064, 1.952, 1.833, 0.089, 8.803, 1.133),
        "AdaOMDeg-TCH": _scores(55.632, 1.524, 1.662, 0.074, 7.930, 1.185),
    },
}
"""tab:3: mean and standard deviation over ten seeds of average accuracy, agnostic loss and accuracy parity."""

MEANS: dict[str, dict[str, tuple[str, tuple[float | None, float | None, float | None]]]] = {
    "cifar-rotation": {
        "STCH w/ momentum": ("STCH", (66.422, 1.205, 4.890)),
        "AdaLS": ("LS", (66.169, None, 6.283)),
        "AdaTCH": ("TCH", (65.257, None, 1.920)),
        "AdaOMDgd-TCH, mini": ("AdaOMDgd-TCH", (66.218, 1.148, 3.592)),
        "AdaOMDgd-TCH, full": ("AdaOMDgd-TCH", (66.061, 1.128, 3.503)),
        "AdaOMDgd-TCH, val": ("AdaOMDgd-TCH", (66.386, 1.185, 4.022)),
        "AdaOMDeg-TCH, mini": ("AdaOMDeg-TCH", (65.885, 1.156, 3.688)),
        "AdaOMDeg-TCH, full": ("AdaOMDeg-TCH", (65.913, 1.130, 3.372)),
        "AdaOMDeg-TCH, val": ("AdaOMDeg-TCH", (66.260, 1.171, 3.819)),
    },
    "cifar-class2": {
        "STCH w/ momentum": ("STCH", (35.105, 2.380, 18.945)),
        "AdaLS": ("LS", (38.095, None, 22.658)),
        "AdaTCH": ("TCH", (21.150, None, 16.345)),
    },
    "cifar-class5": {
        "STCH w/ momentum": ("STCH", (54.240, 1.637, 7.335)),
        "AdaLS": ("LS", (55.540, None, 8.565)),
        "AdaTCH": ("TCH", (47.702, None, 7.204)),
    },
}
"""tab:stch, tab:ablation and tab:ablation2: means of the same three metrics, printed without deviations; and the row of
tab:3 whose deviations they are compared with."""

RATIOS: dict[str, tuple[float, float]] = {
    "LS": (0.656, 0.087),
    "TCH": (0.648, 0.066),
    "STCH": (0.627, 0.068),
    "OMDgd-TCH": (0.647, 0.024),
    "AdaOMDgd-TCH": (0.465, 0.043),
    "OMDeg-TCH": (0.651, 0.029),
    "AdaOMDeg-TCH": (0.465, 0.042),
}
"""tab:ratio: agnostic ratio and ratio parity on CIFAR rotation; no deviations are printed."""

PREFERENCES: dict[str, tuple[Score, Score]] = {
    "LS": (Score(6.911, 0.092), Score(0.156, 0.001)),
    "TCH": (Score(6.693, 0.863), Score(0.125, 0.019)),
    "STCH": (Score(7.583, 0.074), Score(0.147, 0.002)),
    "ExcessMTL": (Score(8.797, 0.052), Score(0.153, 0.001)),
    "EPO": (Score(7.457, 0.208), Score(0.141, 0.004)),
    "FERERO": (Score(6.041, 0.224), Score(0.136, 0.004)),
    "OMDgd-TCH": (Score(9.166, 0.065), Score(0.168, 0.001)),
    "AdaOMDgd-TCH": (Score(7.005, 0.106), Score(0.159, 0.002)),
}
"""tab:new: hypervolumes of losses and of accuracies, two clients, three preferences."""

OVERALL: dict[str, tuple[float, float]] = {"OMDgd-TCH": (1.521, 62.533), "AdaOMDgd-TCH": (1.495, 65.357)}
"""Beside tab:new, in the text: overall loss and accuracy; no deviations are printed."""

_SECONDS: dict[str, tuple[float, ...]] = {
    "LS": (0.338, 0.206, 0.236, 9.748, 2.142, 6.168),
    "qFFL": (0.591, 0.181, 0.482, 7.823, 2.123, 5.450),
    "PropFair": (0.733, 0.559, 0.620, 8.033, 2.059, 5.247),
    "FedMGDA+": (1.360, 0.535, 0.276, 7.920, 2.118, 3.272),
    "FedFV": (0.341, 0.233, 0.607, 7.741, 2.438, 5.937),
    "TCH": (0.329, 0.227, 0.266, 8.191, 1.480, 3.170),
    "STCH": (0.590, 0.546, 0.441, 7.939, 2.537, 5.118),
    "EPO": (0.377, 0.138, 0.180, 8.656, 1.738, 4.241),
    "FERERO": (0.462, 0.227, 0.263, 8.736, 2.000, 4.492),
    "ExcessMTL": (0.344, 0.122, 0.197, 8.576, 1.562, 4.327),
    "AdaExcessMTL": (0.442, 0.142, 0.175, 7.881, 1.389, 4.239),
    "OMDgd-TCH": (0.365, 0.206, 0.266, 8.042, 2.420, 5.273),
    "AdaOMDgd-TCH": (0.591, 0.226, 0.278, 7.900, 3.022, 5.527),
    "OMDeg-TCH": (0.348, 0.209, 0.270, 8.313, 2.342, 6.017),
    "AdaOMDeg-TCH": (0.564, 0.460, 0.569, 7.995, 2.431, 5.508),
}
SECONDS: dict[str, dict[str, float]] = {
    task: {method: row[k] for method, row in _SECONDS.items()} for k, task in enumerate(SCORES)
}
"""tab:4: seconds of training per round, by task and method."""

HYPERVOLUMES: dict[str, tuple[Score, ...]] = {
    "LS": _pairs(0.042, 0.001, 0.938, 0.065, 1.005, 0.005, 0.967, 0.018, 1.002, 0.013, 1.004, 0.019, 0.989, 0.038),
    "TCH": _pairs(0.295, 0.000, 1.011, 0.009, 1.021, 0.009, 1.015, 0.003, 1.024, 0.016, 1.027, 0.003, 1.023, 0.006),
    "STCH": _pairs(0.291, 0.000, 0.986, 0.007, 0.995, 0.007, 0.966, 0.004, 1.004, 0.014, 1.003, 0.007, 1.014, 0.007),
    "OMDgd-TCH": _pairs(
        0.289, 0.001, 0.970, 0.007, 0.990, 0.003, 0.950, 0.003, 0.973, 0.003, 0.983, 0.010, 1.003, 0.004
    ),
    "AdaOMDgd-TCH": _pairs(
        0.292, 0.000, 0.992, 0.005, 1.008, 0.004, 0.970, 0.003, 1.006, 0.013, 1.014, 0.010, 1.015, 0.004
    ),
    "OMDeg-TCH": _pairs(
        0.269, 0.006, 0.960, 0.010, 0.992, 0.004, 0.926, 0.024, 0.942, 0.013, 0.962, 0.016, 0.977, 0.018
    ),
    "AdaOMDeg-TCH": _pairs(
        0.270, 0.006, 0.981, 0.009, 1.006, 0.004, 0.944, 0.021, 0.979, 0.015, 0.984, 0.026, 0.990, 0.014
    ),
    "ExcessMTL": _pairs(
        0.119, 0.011, 0.931, 0.022, 0.965, 0.026, 0.986, 0.012, 0.994, 0.005, 0.993, 0.018, 0.989, 0.016
    ),
    "EPO": _pairs(0.283, 0.003, 0.968, 0.003, 0.953, 0.007, 0.966, 0.003, 0.957, 0.014, 0.965, 0.024, 0.952, 0.020),
    "FERERO": _pairs(0.289, 0.000, 1.010, 0.008, 1.001, 0.001, 0.993, 0.005, 0.996, 0.009, 1.002, 0.014, 0.995, 0.009),
    "MGDA": _pairs(0.232, 0.006, 0.963, 0.015, 0.970, 0.015, 0.981, 0.013, 0.970, 0.014, 0.956, 0.018, 0.994, 0.010),
    "CR-MOGM": _pairs(0.231, 0.006, 0.963, 0.015, 0.971, 0.014, 0.982, 0.013, 0.970, 0.014, 0.958, 0.017, 0.993, 0.010),
    "Moco": _pairs(0.255, 0.011, 0.956, 0.023, 0.977, 0.014, 0.979, 0.021, 0.992, 0.034, 0.981, 0.024, 0.989, 0.035),
    "PMTL": _pairs(0.208, 0.028, 0.883, 0.021, 0.892, 0.022, 0.884, 0.004, 0.887, 0.019, 0.880, 0.043, 0.884, 0.011),
}
"""tab:hv: mean and standard deviation of the hypervolume on VLMOP2 and F1 to F6."""


def known(task: str, row: str) -> Scores | SomeScores | None:
    """The paper's numbers for a row on a task, in tab:3 or one of the smaller tables; None if it has no such row."""
    scores = SCORES.get(task, {})
    if row in scores:
        return scores[row]
    if row not in MEANS.get(task, {}):
        return None
    base, means = MEANS[task][row]
    pairs = zip(means, scores[base], strict=True)
    return SomeScores(*(None if mean is None else Score(mean, near.std) for mean, near in pairs))
