"""`ddpjob validate`: the checks of the API server and of the operator."""

from pathlib import Path
from typing import Annotated

import typer

from ddpjob.cli.options import Context, Kubeconfig, Namespace, Place, Record
from ddpjob.cli.values import FileNames, bad, files_of


def validate(
    files: Annotated[
        list[str] | None, typer.Argument(help="Job files, YAML or JSON. - is standard input.")
    ] = None,
    filename: FileNames = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="File with the installation's allow-list: policy.json of the ConfigMap "
            "ddpjob-operator-policy. By default the chart's defaults apply.",
        ),
    ] = None,
    code: Annotated[
        list[Path] | None,
        typer.Option(
            help="Archive that spec.code stands for. Give the option once for each part, in order.",
        ),
    ] = None,
    server: Annotated[
        bool,
        typer.Option(
            "--server", help="Have the API server check the valid jobs too. It stores none."
        ),
    ] = False,
    output: Annotated[
        Record, typer.Option("--output", "-o", help="Text, or one object of JSON.")
    ] = Record.TEXT,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Check job files by the rules of the API server and of the operator, without a cluster.

    The ConfigMaps with a job's code may stand beside it. Each broken rule is printed with its field
    and value. The exit code is 0 if all files are valid, and 2 if one is not. --server asks for
    what only a cluster knows: rights, and what refuses DDPJobs there (admission, quotas of them).
    Whether it takes their pods turns out when they are created. The exit code is 5 if a job is
    refused, and 4 without a login or a right.
    """
    place = {"--namespace": namespace, "--context": context, "--kubeconfig": kubeconfig}
    for option, value in place.items():
        if value is not None and not server:
            raise bad("has no effect without --server", option)
    from ddpjob.cli.validation import Validation, read_archive, read_policy  # the models are slow

    validation = Validation(
        policy=read_policy(policy) if policy else None,
        archive=read_archive(code) if code else None,
        place=Place(namespace, context, kubeconfig) if server else None,
    )
    raise typer.Exit(validation.run(files_of(files, filename), output))
