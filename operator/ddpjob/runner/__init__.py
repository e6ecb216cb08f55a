"""Runs pods as processes of this machine, for local mode and tests: a kubelet without images.

    kubelet.py   Runner: the pods bound to this node, one task each
    pod.py       one pod's life: prepare, start, report, stop, report
    view.py      the pod in the API: its newest version, and the reports
    place.py     what stands in for the cluster's parts of a pod
    code.py      pure: the pod of a job whose code is at hand, as a folder
    launch.py    pure: the argv and environment that a pod's container becomes here
    gpus.py      the GPUs that there are, and which of them each node sees
    volumes.py   the folders that its volumes become
    network.py   a loopback address for each pod, a port for each attempt
    process.py   the process, its log, its end
    shim.py      runs between, so that no process of a pod outlives it
    status.py    pure: what a kubelet writes into a pod's status

Not played: images and resource limits, users and capabilities, probes and lifecycle hooks, init
containers and sidecars, Secrets. On Linux every pod has an address of its own in 127.0.0.0/8; macOS
has 127.0.0.1 alone, so there each pod's agent gets a port of its own, written in its annotations.
"""

from ddpjob.runner.kubelet import Runner

__all__ = ["Runner"]
