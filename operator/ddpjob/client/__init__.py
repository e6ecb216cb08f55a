"""The Python SDK, which the CLI uses too: `Client`, `Job` and their errors.

Layers: `cli` → `client` → `api`, `cluster` (paths of kinds alone) and leaves such as `errors`.
The client is another program than the operator: it imports nothing of `controller`, `leader`,
`plan`, `pods` and `runner`, and no aiohttp. Its library is `kubernetes`, which brings kubeconfigs,
exec plugins and cloud logins. It is imported only when a request is made, because the import takes
longer than all the rest of `ddpjob --help`. For the same reason the models of `api` are imported
when somebody reads them (`Job.status`, `Job.spec`).

    login        kubeconfig, context, in-cluster → an HTTP pool with credentials; what went wrong
    connection   one request, lists, and watches that survive what ends a watch
    client       Client: the jobs of a namespace
    job          Job: the verbs on one job; snapshot has what they find
    creation     creates a job, and the ConfigMaps with its code
    code_maps    these ConfigMaps: who owns them, and when they go
    build        what a command line says → the object of a job
    jobfile      a job file: one job, and the ConfigMaps with its code beside it; documents reads
                 and writes YAML and JSON as kubectl does
    follow       the lines of its logs: podlog reads one log, tracked knows which pods there are,
                 resume finds the place after a cut, merge orders the lines of several
    description  what there is to say of a job; advice on what to do
    installed    what of ddpjob the cluster has
    why          why a job is not simply running, in one line
    launch       a function, a module or a script → a job; local runs it on this machine
    functions    a call as it is sent, and notebook_source a notebook's function as a module;
                 call_script is the script that calls it in each rank
    live         shows a job until its end: display in a notebook or line by line, html the pictures
    results      what rank 0 has left
    aio          the twins for asyncio, over threads that end with their calls
"""
