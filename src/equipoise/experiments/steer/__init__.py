"""A local page that shows a running training and lets a person change its preference.

`server` speaks to one browser on this machine, through the files of `equipoise.train.steering` to the training. The
page shares style and pictures with the report.
"""

from equipoise.experiments.steer.server import Server

__all__ = ["Server"]
