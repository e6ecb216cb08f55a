"""A metric over the steps of a training, with its restarts: as SVG, and as text. Pure."""

from ddpjob.plot.curve import Curve, Metric, points_of, read_history
from ddpjob.plot.svg import svg
from ddpjob.plot.terminal import ASCII, text

__all__ = ["ASCII", "Curve", "Metric", "points_of", "read_history", "svg", "text"]
