"""Real Kubernetes for the tests: a control plane as processes, or a whole cluster by kind."""
