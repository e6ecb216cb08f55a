"""The Python SDK, which the CLI uses too: `Client`, `Job` and their errors.

Layers: `cli` → `client` → `api`, `cluster` (paths of kinds alone) and leaves such as `errors`.
The client is another program than the operator: it imports nothing of `controller`, `leader`,
`plan`, `pods` and `runner`, and no aiohttp. Its library is `kubernetes`, which brings kubeconfigs,
exec plugins and cloud logins. It is imported only when a request is made, because the import takes
longer than all the rest of `ddpjob --help`. For the same reason the models of `api` are imported
when somebody reads them (`Job.status`, `Job.spec`).
"""
