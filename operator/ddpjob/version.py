"""This version of ddpjob. In a module of its own, since the package imports the SDK by name."""

__version__ = "0.1.0"
