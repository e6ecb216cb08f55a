"""What a job becomes in a cluster: Service, ConfigMap, NetworkPolicy and pods."""
