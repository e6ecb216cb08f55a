"""In a pod this folder stands on PYTHONPATH and is no package; `sitecustomize` runs by itself."""
