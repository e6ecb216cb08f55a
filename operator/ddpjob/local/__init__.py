"""Runs jobs on this machine: a cluster in memory, and its pods as processes.

    cluster.py     the API server, with its objects in store.py
    kubelet.py     Runner: the pods bound to this node, one task each
    pod.py         one pod's life: prepare, start, report, stop, report
    pod_status.py  the pod in the API: its status, its newest version, and the reports
    launch.py      pure: the argv and environment that a pod's container becomes here
    gpus.py        the GPUs that there are, and which of them each node sees
    volumes.py     what stands in for the cluster's parts of a pod, its folders among them
    network.py     a loopback address for each pod, a port for each attempt
    process.py     the process, its log, its end
    shim.py        runs between, so that no process of a pod outlives it

Not played: images and resource limits, users and capabilities, probes and lifecycle hooks, init
containers and sidecars, Secrets. On Linux every pod has an address of its own in 127.0.0.0/8; macOS
has 127.0.0.1 alone, so there each pod's agent gets a port of its own, written in its annotations.
"""
