"""What becomes of the fields of other operators' objects, but for those that need code.

The later of two fields counts that are the same field of a DDPJob.
"""

from ddpjob.convert.fields import Dropped, Refused, Same, Table

GROUP_RESTARTS = "the whole group restarts, 3 times without progress: see failurePolicy.maxRestarts"
COUNTED = "which counts restarts of the group without progress"
_MIN_NODES = Same("elastic.minNodes", "the group waits for the others for elastic.replaceSeconds")
_OF_ELASTIC = Dropped("nnodes is the largest size, and ddpjob sets the rendezvous")
_GANG = Dropped("a gang is all pods of the job, where the chart has gang.scheduler")

_SCHEDULING = "runPolicy.schedulingPolicy"
PYTORCH_JOB: Table = {
    "runPolicy.cleanPodPolicy": Same("cleanPodPolicy"),
    "runPolicy.ttlSecondsAfterFinished": Same("ttlSecondsAfterFinished"),
    "runPolicy.activeDeadlineSeconds": Same("activeDeadlineSeconds"),
    "runPolicy.suspend": Same("suspend"),
    "runPolicy.managedBy": Dropped("it does not know DDPJobs", "kubeflow.org/training-operator"),
    f"{_SCHEDULING}.scheduleTimeoutSeconds": Same(
        "startupDeadlineSeconds", "which also covers the pull of images"
    ),
    f"{_SCHEDULING}.priorityClass": Same(
        "template.spec.priorityClassName", "from which the pod group has it"
    ),
    f"{_SCHEDULING}.queue": Same(
        "scheduling.queue", "which needs gang.scheduler: volcano in the chart"
    ),
    f"{_SCHEDULING}.*": _GANG,
    "elasticPolicy.standalone": Dropped("all nodes train together, not each by itself"),
    "elasticPolicy.minReplicas": _MIN_NODES,
    "elasticPolicy.*": _OF_ELASTIC,
}

_MANAGER = "trainer.kubeflow.org/trainjob-controller"
TRAIN_JOB: Table = {
    "suspend": Same("suspend"),
    "activeDeadlineSeconds": Same("activeDeadlineSeconds"),
    "managedBy": Dropped("it does not know DDPJobs", _MANAGER),
    "initializer.*": Dropped("ddpjob loads nothing: put it into a volume, and name that in data"),
}
_TORCH, _JOBSET = "mlPolicy.torch", "template.spec"
_OTHER = Refused("must be absent, because a DDPJob runs PyTorch and not this framework")
_OWN = Dropped("the JobSet's own; a DDPJob makes its pods, its Service and their restarts itself")
RUNTIME: Table = {
    "mlPolicy.mpi": _OTHER,
    "mlPolicy.jax": _OTHER,
    "mlPolicy.xgboost": _OTHER,
    "mlPolicy.flux": _OTHER,
    f"{_TORCH}.envInjection": Dropped("RANK, PET_* and the like are set in the trainer alone"),
    "podGroupPolicy.coscheduling.scheduleTimeoutSeconds": Same(
        "startupDeadlineSeconds", "which also covers the pull of images"
    ),
    "podGroupPolicy.*": _GANG,
    f"{_JOBSET}.ttlSecondsAfterFinished": Same("ttlSecondsAfterFinished"),
    f"{_JOBSET}.failurePolicy.maxRestarts": Same("failurePolicy.maxRestarts"),
    f"{_TORCH}.elasticPolicy.maxRestarts": Same("failurePolicy.maxRestarts"),
    f"{_JOBSET}.failurePolicy.*": Dropped("write rules of exit codes into failurePolicy.rules"),
    f"{_TORCH}.elasticPolicy.minNodes": _MIN_NODES,
    f"{_TORCH}.elasticPolicy.*": _OF_ELASTIC,
    f"{_JOBSET}.*": _OWN,
}
REPLICATED_JOB: Table = {
    "template.spec.activeDeadlineSeconds": Same("activeDeadlineSeconds"),
    "template.spec.ttlSecondsAfterFinished": Same("ttlSecondsAfterFinished"),
    "template.spec.backoffLimit": Same("failurePolicy.maxRestarts", COUNTED),
    "template.spec.*": _OWN,
    "*": Dropped("a DDPJob is one group of pods, which starts at once"),
}
OTHER_JOB: Table = {"*": Dropped("a DDPJob has no such job")}

_NAMED = Dropped("ddpjob names the pods, so that the ranks find each other")
POD: Table = {
    "hostname": _NAMED,
    "hostnameOverride": _NAMED,
    "subdomain": _NAMED,
    "setHostnameAsFQDN": _NAMED,
    "restartPolicy": Dropped("the operator restarts the group (failurePolicy)"),
    "activeDeadlineSeconds": Dropped("is a field of the job"),
    "ephemeralContainers": Dropped("cannot be set on new pods"),
}
TRAINER: Table = dict.fromkeys(
    ("restartPolicy", "restartPolicyRules", "terminationMessagePath", "terminationMessagePolicy"),
    Dropped("ddpjob restarts the ranks and keeps their last words"),
)
