"""Renders the objects of a job: Service, ConfigMap, NetworkPolicy and pods."""
